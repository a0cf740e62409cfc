-- Gives the lock back on one node of a quorum.
--
-- KEYS  1 K  the lock     2 F  the fencing counter: not touched
-- ARGV  1 token     2 not used     3 'force': whoever holds it, for operators
-- Replies  1 it was given back     0 the token did not hold it
-- Never: touches the lock of another token (but for force); fails for want of memory.

local owner = redis.call('GET', KEYS[1])
if not owner or owner ~= ARGV[1] and ARGV[3] ~= 'force' then return 0 end
return redis.call('DEL', KEYS[1])
