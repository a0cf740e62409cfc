-- Puts its time on each lock that its token still holds on this node and whose fencing counter is there, and leaves the others
-- alone.
--
-- KEYS  n locks, then their n fencing counters     ARGV  n tokens, then n times n ms, lock delay included
-- Reply {r1 … rn}  {1, f, now}  renewed, as renew.lua replies
--                  0            nothing was done: renew.lua knows why. Here a lock of another type looks as one that is gone.
-- Never: writes to a counter. It is sent for a token under which the node has accepted the fencing token of the lease, so the
-- counter is as high unless it was lost. One that is gone renew.lua makes anew. One that is lower is told by f, and the client
-- then sends renew.lua next time.

local n = #KEYS / 2
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local is = redis.call('MGET', unpack(KEYS))
local replies = {}
for i = 1, n do
  replies[i] = 0
  if is[i] == ARGV[i] and is[n + i] then
    local f, px = tonumber(string.match(is[n + i], '^%d+$') or ''), tonumber(ARGV[n + i])
    if f and f < 9007199254740992 and px and px >= 1 and px % 1 == 0
      and (redis.call('PTTL', KEYS[i]) >= px or redis.pcall('PEXPIRE', KEYS[i], ARGV[n + i]) == 1) then
      replies[i] = {1, f, now}
    end
  end
end
return replies
