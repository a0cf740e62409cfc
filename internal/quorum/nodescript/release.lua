-- Gives the lock back on one node of a quorum.
--
-- KEYS  1 K  the lock
-- ARGV  1 token
--       2  force  whoever holds it, for operators
--          back   to the former token, which stands behind it: an adoption has failed
--          else not given
-- Replies  1 it was given back     0 nobody holds it     -1 somebody else does, or the key is no lock
--          with force the token whose lock it was, or 1 if the key held no string, or 0
-- Never: touches the lock of another token (but for force); changes the time of one that it gives back; fails for want of
-- memory.

local owner, how = redis.pcall('GET', KEYS[1]), ARGV[2]
if type(owner) == 'table' and not string.find(owner.err, 'WRONGTYPE', 1, true) then redis.call('GET', KEYS[1]) end
if not owner then return 0 end
if how == 'force' then
  redis.call('DEL', KEYS[1])
  return type(owner) == 'string' and owner or 1
end
if owner ~= ARGV[1] then return -1 end
local left = how == 'back' and redis.call('PTTL', KEYS[1])
redis.call('DEL', KEYS[1]) -- a full server allows it, and any write behind it
if left and left > 0 then redis.call('SET', KEYS[1], ARGV[3], 'PX', left) end
return 1
