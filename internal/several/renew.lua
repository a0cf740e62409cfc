-- Puts a lease's time on a lock that its token holds together with others.
--
-- KEYS  as holders.lua
-- ARGV  1 token   2 ms   3 shorten or keep, as renew.lua of the root package   4, 5 as those of acquire.lua
-- Replies
--   n         renewed; n wait in the line
--   -1 to -4  the token does not hold the lock, for the reason that lost.lua says
-- Never: creates a lock or puts a holder back; takes time from one that has more, but with shorten.

-- include holders.lua

local PX = tonumber(ARGV[2])
if not PX or PX < 1 or PX ~= math.floor(PX) or ME == '' then
  return redis.error_reply('ERR leasehold: renew wants a token and whole milliseconds from 1')
end
local err = holders()
if err then return err end
if not grant(ME) then
  local token = ME
  -- include lost.lua
  return why
end
local score = ms + PX
if ARGV[3] ~= 'shorten' then score = math.max(score, tonumber(redis.call('ZSCORE', H, ME))) end
redis.call('ZADD', H, string.format('%.0f', score), ME)
settle()
if converted then serve('', 0, ARGV[4], ARGV[5]) end
return redis.call('ZCARD', Q)
