-- Takes a lease over: puts a new token in the place of the former holder's, with the next fencing token.
--
-- KEYS  1 to 5 as acquire.lua; 2 and 4 are not used
-- ARGV  1  the new token     2 ms, lock delay included     3 the former holder's token
--       4  cancel  the end of an adoption that has failed, whatever came of it: the lock goes back to the former token; else
--                not given
-- Replies
--   n, or its digits   the new token holds the lock, with this fencing token
--   {'GONE', why}      the former token does not hold it; see lost.lua
--   with cancel: 1 it was given back     0 the new token did not hold it
-- Idempotent by the new token, as acquire.lua; the expiry does not move when it is sent again.
-- Never: creates a lock; shortens the time that the former holder has been given, since an adoption may be cancelled; takes
-- the lock for a token that was cancelled; fails, with cancel, for want of memory.
--
-- Both tokens' tombstones are kept as those of release.lua. The former one's stops an acquire of its that is still on its way,
-- which would take the lock, for nobody, when the adopter has released it; and it tells the former holder what has happened.

local K, F, D, ME, FORMER = KEYS[1], KEYS[3], KEYS[5], ARGV[1], ARGV[3]
local PX = tonumber(ARGV[2])
if not PX or PX < 1 or PX ~= math.floor(PX) or ME == '' or (FORMER or '') == '' then
  return redis.error_reply('ERR leasehold: adopt wants two tokens and whole milliseconds from 1')
end

-- include token.lua

local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local owner = redis.pcall('GET', K)

-- include tombstone.lua

if ARGV[4] == 'cancel' then
  bury(ME, math.floor(now / 1000))
  if owner ~= ME then return 0 end
  redis.call('ZREM', D, FORMER)
  redis.call('SET', K, FORMER, 'KEEPTTL')
  return 1
end

if owner == ME then
  local f = redis.call('GET', F)
  if f then return (string.gsub(f, '%+$', '')) end
elseif owner ~= FORMER or redis.call('ZSCORE', D, ME) then
  local token = FORMER
  -- include lost.lua
  return {'GONE', why}
end

local n, err = fence(now, '+')
if not n then return err end
if owner ~= ME then
  if redis.call('PTTL', K) < PX then
    redis.call('SET', K, ME, 'PX', ARGV[2])
  else
    redis.call('SET', K, ME, 'KEEPTTL')
  end
  bury(FORMER, math.floor(now / 1000))
end
return n
