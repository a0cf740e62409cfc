-- Takes the lock, or a place in its line, or neither.
--
-- KEYS  1 K  the lock: string, the holder's token, PX
--       2 Q  the line: zset, token -> ticket, lives twice a waiter's time to live after its last use
--       3 F  the fencing counter, see token.lua
--       4 G  the heartbeats: hash, token -> the server time in ms until which it counts as alive, lives as Q; see alive.lua
--       5 D  the tombstones: zset, tokens that were given up -> the server time in ms until which they are kept, a minute
--       All hash to one slot. No other key is touched, and none is left without a TTL.
-- ARGV  1  token of this attempt; its first 16 characters name its Locker
--       2  ms for which K is set, lock delay included
--       3  try    take the lock if nobody alive is before us; leave nothing behind otherwise
--          join   the same, but stand in the line if it cannot be had
--          poll   a later call of one who stands there; creates no place
--       4  what stands before a Locker's id in the name of its wake channel, if not what stands in handover.lua
--       5  SPUBLISH where sharded channels are used, else not given
-- Replies
--   n, or its digits          we hold the lock, with this fencing token; digits where we held it before, and past 2^53
--   {'HELD', ms}              somebody else does, for ms more (-1: for ever; -2: nobody does, but this run has only cleared
--                             dead places out of the line, and somebody may live behind them: send it again)
--   {'WAITING', f, ms, rank, now, foreign}
--                             we stand in the line behind rank others; ms is as with HELD, f the last fencing token given,
--                             now the server's time in µs; foreign is 1 if the holder's token has not the shape of ours
--                             (package token): such a holder tells nobody when it lets go; 2 if the lock is or may be held
--                             by several (package several)
--   {'GONE'}                  we have no place (any more), or this attempt was cancelled before it came
-- Idempotent by token: sent twice, it answers twice the same, with the same fencing token. That is how a lost reply,
-- and a lock that a release handed over, are found.
-- Never: two holders; a place for a token that was cancelled; a lock past a live waiter.

local K, Q, F, G, D = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local ME, MODE = ARGV[1], ARGV[3]

-- include token.lua

-- Nobody waits and nobody holds it: the common case first, before anything else is looked at or made. SET itself refuses
-- a bad time, before the first write.
local comes = MODE == 'try' or MODE == 'join'
local found = comes and redis.call('EXISTS', Q, D) -- of the line and the tombstones
local mine = found == 0 and ME ~= '' and redis.call('SET', K, ME, 'NX', 'PX', ARGV[2])

local owner, last
if not mine then
  local PX = tonumber(ARGV[2])
  if not PX or PX < 1 or PX ~= math.floor(PX) or ME == '' then
    return redis.error_reply('ERR leasehold: acquire wants a token and whole milliseconds from 1')
  end
  owner = redis.call('GET', K)
  if owner == ME then
    redis.call('PEXPIRE', K, math.max(PX, redis.call('PTTL', K))) -- as renew.lua: the lease may have been extended since
    local f = redis.call('GET', F)
    if f then return (string.gsub(f, '%+$', '')) end
    mine = true
  elseif MODE == 'poll' and not redis.call('ZSCORE', Q, ME) then
    return {'GONE'}
  elseif comes and found > 0 then
    last = redis.call('ZRANGE', Q, -1, -1, 'WITHSCORES')[2]
    if found > (last and 1 or 0) and redis.call('ZSCORE', D, ME) then return {'GONE'} end
  end
  if owner and not mine and MODE == 'try' then return {'HELD', redis.call('PTTL', K)} end
end

local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
if not owner and not mine then
  -- Whoever finds a free lock and a live line serves its head.
  local channel, publish, first = ARGV[4], ARGV[5], redis.call('ZPOPMIN', Q)
  -- include handover.lua
  if err then return err end
  mine = not head and room > 0 or head == ME
  if mine then redis.call('SET', K, ME, 'NX', 'PX', ARGV[2]) end
end
if mine then
  -- Without the flag only where this run has found neither line nor tombstone: what it has made of them since, it has not.
  local n, err = fence(now, found == 0 and '' or '+')
  if n then return n end
  redis.call('DEL', K) -- with no fencing token there is no lock
  return err
end
if MODE == 'try' then return {'HELD', redis.call('PTTL', K)} end

-- The first write of these is the last that a full server can refuse.
if comes and now > (tonumber(last) or 0) and redis.call('ZADD', Q, 'NX', string.format('%.0f', now), ME) == 1 then
  last = now
else
  redis.call('HSET', G, ME, string.format('%.0f', math.floor(now / 1000) + $WAITER_TTL))
  redis.call('PEXPIRE', G, 2 * $WAITER_TTL)
  if comes then redis.call('ZADD', Q, 'NX', string.format('%.0f', last + 1), ME) end
end
redis.call('PEXPIRE', Q, 2 * $WAITER_TTL)
-- Never 0 for a counter that is gone: a grant that ran before this poll must not seem to have run after it.
local given = redis.call('GET', F) or now
if type(given) == 'string' then
  if tonumber(given) then redis.call('SET', F, given .. '+', 'KEEPTTL') end -- the flag: see token.lua
  given = string.gsub(given, '%+*$', '')
end
local a, kind, b, c = string.match(owner or '', '^%w+()([.~#])%w+()%.%w+()')
local foreign = owner and not (a == 17 and b == 31 and c == 58) and 1 or 0
if foreign == 0 and owner and kind ~= '.' or owner == 'leasehold:shared' or owner == 'leasehold:slots' then foreign = 2 end
return {'WAITING', given, redis.call('PTTL', K), redis.call('ZRANK', Q, ME), now, foreign}
