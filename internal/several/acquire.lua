-- Takes a lock together with others, or a place in its line, or neither.
--
-- KEYS  as holders.lua     ARGV  as acquire.lua of the root package; the token is of a shared lease or a slot
-- Replies
--   {'GRANTED', f, slot, found}   we hold the lock, with this fencing token, in digits, and slot, 0 if it is shared; found is 1
--                                 where we held it before
--   {'HELD', ms}, {'WAITING', f, ms, rank, now, foreign}, {'GONE'}   as acquire.lua; for one who wants a slot while others have
--                                 theirs, ms is the time until the first of them is over
-- Idempotent by token. Never: more holders than fit together; a place for a token that was cancelled; a lock past a live waiter.

-- include holders.lua

local MODE, PX = ARGV[3], tonumber(ARGV[2])
local mark = kind(ME)
if not PX or PX < 1 or PX ~= math.floor(PX) or not mark then
  return redis.error_reply('ERR leasehold: acquire wants a token for several holders and whole milliseconds from 1')
end
local err = holders()
if err or type(owner) == 'table' then return err or owner end

local mine = grant(ME)
if mine then
  redis.call('ZADD', H, string.format('%.0f', math.max(ms + PX, tonumber(redis.call('ZSCORE', H, ME)))), ME)
  settle()
  if converted then serve('', 0, ARGV[4], ARGV[5]) end
  local f, slot = string.match(mine, '^(%d+)/(%d+)$')
  return {'GRANTED', f, tonumber(slot), 1}
end
if MODE == 'poll' then
  if not redis.call('ZSCORE', Q, ME) then return {'GONE'} end
elseif redis.call('ZSCORE', D, ME) then
  return {'GONE'}
end

if not owner or owner == SHARED or owner == SLOTS then
  local f, slot = serve(ME, PX, ARGV[4], ARGV[5])
  if not f and slot then return slot end
  if not f and redis.call('EXISTS', Q) == 0 and fits(ME) then
    f, slot = put(ME, PX)
    if not f then return slot end
  end
  if f then return {'GRANTED', f, slot, 0} end
end

local left = redis.call('PTTL', K)
if owner == SLOTS and mark == SLOTS then
  local first = redis.call('ZRANGE', H, 0, 0, 'WITHSCORES')[2]
  if first then left = math.max(first - ms, 0) end
end
if MODE == 'try' then return {'HELD', left} end

-- The first write of these is the last that a full server can refuse.
local last = tonumber(redis.call('ZRANGE', Q, -1, -1, 'WITHSCORES')[2]) or 0
if MODE ~= 'join' or now <= last or redis.call('ZADD', Q, 'NX', string.format('%.0f', now), ME) == 0 then
  redis.call('HSET', G, ME, string.format('%.0f', ms + $WAITER_TTL))
  redis.call('PEXPIRE', G, 2 * $WAITER_TTL)
  if MODE == 'join' then redis.call('ZADD', Q, 'NX', string.format('%.0f', last + 1), ME) end
end
redis.call('PEXPIRE', Q, 2 * $WAITER_TTL)
-- Never 0 for a counter that is gone, and with the flag: see acquire.lua and token.lua.
local given = redis.call('GET', F) or now
if type(given) == 'string' then
  if tonumber(given) then redis.call('SET', F, given .. '+', 'KEEPTTL') end
  given = string.gsub(given, '%+*$', '')
end
local foreign = 0
if owner and owner ~= SHARED and owner ~= SLOTS then
  local a, b, c = string.match(owner, '^%w+()[.~#]%w+()%.%w+()')
  if not (a == 17 and b == 31 and c == 58) then foreign = 1 end
end
return {'WAITING', given, left, redis.call('ZRANK', Q, ME), now, foreign}
