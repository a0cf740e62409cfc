-- Takes the lock, or a place in its line, or neither.
--
-- KEYS  1 K  the lock: string, the holder's token, PX
--       2 Q  the line: zset, token -> ticket, lives 2 CLAIM after its last use
--       3 F  the fencing counter, see fence.lua
--       4 G  the marks: hash, token -> the server time in ms until which it counts as alive, lives as Q
--       5 D  the tombstone of this attempt's token
--       All hash to one slot. No other key is touched, and none is left without a TTL.
-- ARGV  1  token of this attempt; its first 16 characters name its Locker
--       2  ms for which K is set, lock delay included
--       3  try    take the lock if nobody alive is before us; leave nothing behind otherwise
--          join   the same, but stand in the line if it cannot be had
--          look   a later call of one who stands there; creates no place
--          adopt  only find out whether the token holds the lock
--       4  what stands before a Locker's id in the name of its wake channel
--       5  SPUBLISH where sharded channels are used, else not given
-- Replies
--   n, or its digits          we hold the lock, with this fencing token
--   {'HELD', ms}              somebody else does, for ms more (-1: for ever)
--   {'WAITING', f, ms, rank}  we stand in the line behind rank others; f is the last fencing token given
--   {'GONE'}                  we have no place (any more), or this attempt was undone before it came
-- Idempotent by token: sent twice, it answers twice the same, with the same fencing token. That is how a lost reply,
-- and a lock that a release handed over, are found.
-- Never: two holders; a place for a token that was undone; a lock past a live waiter.

local K, Q, F, G, D = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local ME, MODE = ARGV[1], ARGV[3]

-- include fence.lua

-- The end of a take whose first step was to set K: with no fencing token there is no lock.
local function took()
  local n, err = fence()
  if n then return n end
  redis.call('DEL', KEYS[1])
  return err
end

-- Nobody waits and nobody holds it: the common case first, before anything else is looked at or made. SET itself refuses
-- a bad time, before the first write.
local line = ME == '' or MODE == 'look' or MODE == 'adopt' or redis.call('EXISTS', Q, D) > 0
if not line and redis.call('SET', K, ME, 'NX', 'PX', ARGV[2]) then return took() end

local PX = tonumber(ARGV[2])
if not PX or PX < 1 or PX ~= math.floor(PX) or ME == '' then
  return redis.error_reply('ERR leasehold: acquire wants a token and whole milliseconds from 1')
end
local owner = redis.call('GET', K)
if owner == ME then
  -- An adopter's shorter TTL must not shorten the lease that it adopts.
  if MODE ~= 'adopt' or redis.call('PTTL', K) < PX then redis.call('PEXPIRE', K, PX) end
  local f = redis.call('GET', F)
  if not f then return took() end
  return f
end
if MODE == 'adopt' then return {'GONE'} end
if MODE == 'look' then
  if not redis.call('ZSCORE', Q, ME) then return {'GONE'} end
elseif line and redis.call('EXISTS', D) == 1 then
  return {'GONE'}
end

-- include line.lua

if not owner then
  local t, left = next_waiter()
  if not t or t == ME then
    redis.call('SET', K, ME, 'NX', 'PX', PX)
    return took()
  end
  local n, err = give(t, left) -- whoever finds a free lock and a live line serves its head
  if not n then return err end
end
if MODE == 'try' then return {'HELD', redis.call('PTTL', K)} end

local placed = redis.call('ZSCORE', Q, ME)
local now = millis()
redis.call('HSET', G, ME, string.format('%.0f', now + CLAIM)) -- the first write, and the last that can fail
redis.call('PEXPIRE', G, 2 * CLAIM)
if not placed then
  local last = redis.call('ZRANGE', Q, -1, -1, 'WITHSCORES')[2]
  redis.call('ZADD', Q, (last or 0) + 1, ME)
end
redis.call('PEXPIRE', Q, 2 * CLAIM)
-- Never 0 for a counter that is gone: a grant that ran before this look must not seem to have run after it.
local last = redis.call('GET', F) or string.format('%.0f', (now + 1) * 1000)
return {'WAITING', last, redis.call('PTTL', K), redis.call('ZRANK', Q, ME)}
