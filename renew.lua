-- Puts the lease's full time back on a lock that its token still holds.
--
-- KEYS  1 K  the lock     2 Q  its line, if who renews wants to know who waits
-- ARGV  1 token     2 ms, lock delay included
-- Replies
--   n   renewed; n wait in the line, 0 if that was not asked
--   -1  the token does not hold the lock: no later renewal of it will find otherwise
-- Never: creates a lock; adds to the time; shortens it (two processes may renew one token with TTLs of their
-- own, where a lease was adopted, and each trusts its own).

local px = tonumber(ARGV[2])
if not px or px < 1 or px ~= math.floor(px) or ARGV[1] == '' then
  return redis.error_reply('ERR leasehold: renew wants a token and whole milliseconds from 1')
end
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return -1 end
if redis.call('PTTL', KEYS[1]) < px then redis.call('PEXPIRE', KEYS[1], px) end
local n = KEYS[2] and redis.pcall('ZCARD', KEYS[2]) -- of no use to the renewal, so no reason to fail it
return type(n) == 'number' and n or 0
