-- Puts its time on each lock that its token still holds, and leaves the others alone.
--
-- KEYS  n locks     ARGV  n tokens, then n times n ms, lock delay included
-- Reply {r1 … rn}  0 renewed     1 nothing was done: the full script knows why. Not "lost": here a lock of another type looks
--                  as one that is gone.

local n = #KEYS
local is = redis.call('MGET', unpack(KEYS))
local gt = 'GT' -- does both at once: a lock that has more time keeps it, as in renew.lua
local replies = {}
for i = 1, n do
  replies[i] = 1
  if is[i] == ARGV[i] then
    local px = tonumber(ARGV[n + i])
    if px and px >= 1 then
      local set = gt and redis.pcall('PEXPIRE', KEYS[i], ARGV[n + i], gt)
      if type(set) == 'table' then gt = nil end -- Redis 6 does not know it
      if set == 1 or redis.call('PTTL', KEYS[i]) > px or redis.pcall('PEXPIRE', KEYS[i], ARGV[n + i]) == 1 then
        replies[i] = 0
      end
    end
  end
end
return replies
