-- Puts a lease's time on a lock that its token still holds.
--
-- KEYS  1 K  the lock; and, if who renews wants to know more, 2 to 5 as acquire.lua
-- ARGV  1 token     2 ms, lock delay included     3 shorten: for this time and no longer; else not given
-- Replies
--   n         renewed; n wait in the line, 0 if that was not asked
--   -1 to -4  the token does not hold the lock, for the reason that lost.lua says (-3 only if more was asked): no later
--             renewal of it will find otherwise
-- Never: creates a lock; adds to the time; takes time from a lock that has more, but with shorten. A renewal may arrive
-- after a later one that asked for more, whose holder trusts that.

local px = tonumber(ARGV[2])
if not px or px < 1 or px ~= math.floor(px) or ARGV[1] == '' then
  return redis.error_reply('ERR leasehold: renew wants a token and whole milliseconds from 1')
end
local owner = redis.pcall('GET', KEYS[1])
if owner ~= ARGV[1] then
  local token = ARGV[1]
  -- include lost.lua
  return why
end
local left = ARGV[3] ~= 'shorten' and redis.call('PTTL', KEYS[1])
-- A write even where it changes nothing: WithReplicas has a WAIT behind it (replicas.go).
redis.call('PEXPIRE', KEYS[1], left and left > px and left or ARGV[2])
local n = KEYS[2] and redis.pcall('ZCARD', KEYS[2]) -- of no use to the renewal, so no reason to fail it
return type(n) == 'number' and n or 0
