-- Gives the lock back where nobody waits for it, and does nothing otherwise.
--
-- KEYS  1 K  the lock     2 F  its fencing counter: see token.lua of the root package
-- ARGV  1 token
-- Replies  1 it was given back     0 nothing was done: the full script knows what to do
-- Never: touches the lock of another token; lets it stand free while somebody waits.

local is = redis.call('MGET', KEYS[1], KEYS[2])
if is[1] == ARGV[1] and tonumber(is[2]) then return redis.call('DEL', KEYS[1]) end
return 0
