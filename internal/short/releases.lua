-- Gives each lock back for which nobody waits, and leaves the others alone.
--
-- KEYS  n locks, then their n fencing counters     ARGV  n tokens
-- Reply {r1 … rn}, each as of release.lua. No lock is given twice: both replies would be 1.

local n = #KEYS / 2
local is = redis.call('MGET', unpack(KEYS))
local ours, replies = {}, {}
for i = 1, n do
  replies[i] = 0
  if is[i] == ARGV[i] and tonumber(is[n + i]) then
    ours[#ours + 1] = KEYS[i]
    replies[i] = 1
  end
end
if ours[1] then redis.call('DEL', unpack(ours)) end
return replies
