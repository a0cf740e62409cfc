-- Gives up what a token holds together with others, or its place in the line, and serves those who fit then. It is also how an
-- exclusive waiter leaves a line in which others may fit the moment it is gone.
--
-- KEYS  as holders.lua
-- ARGV  1 token   2 release or cancel, as release.lua of the root package   3, 4 as 4, 5 of acquire.lua
-- Replies
--   1 the lock was given back     2 the place in the line was     -1 to -4 there was neither, for the reason that lost.lua says
-- Never: touches what another token holds; creates a lock for its token; fails for want of memory.

-- include holders.lua

if ARGV[2] == 'cancel' then bury(ME, ms) end
holders() -- an error leaves a lock that was handed over as it is
local done
if owner == ME then
  redis.call('DEL', K)
  owner, done = nil, 1
elseif (owner == SHARED or owner == SLOTS) and redis.call('ZREM', H, ME) == 1 then
  redis.call('HDEL', I, ME)
  settle()
  done = 1
elseif redis.call('ZREM', Q, ME) == 1 then
  redis.call('HDEL', G, ME)
  done = 2
else
  local token = ME
  -- include lost.lua
  done = why
end
if done == 1 or done == 2 and (owner == SHARED or owner == SLOTS) then serve('', 0, ARGV[3], ARGV[4]) end
return done
