-- Takes each lock about which everything is ordinary, and leaves the others alone.
--
-- KEYS  n locks, then their n fencing counters     ARGV  n tokens, then n times n ms, as acquire.lua
-- Reply {r1 … rn}, each as of acquire.lua
-- Locks that are taken together have one fencing token, the server's time: tokens are compared for one lock only.
-- Never raises an error once it has taken a lock.

local n = #KEYS / 2
local t = redis.call('TIME')
local us = t[2]
if #us < 6 then us = string.sub('00000', #us) .. us end
local digits = t[1] .. us
local now = tonumber(digits)
local hour = now - now % 3600000000
local last = redis.call('MGET', unpack(KEYS, n + 1, 2 * n))
local replies = {}
for i = 1, n do
  local f, reply = tonumber(last[i]), 0
  if f and f < now and f >= hour and now < 9007199254740992 and ARGV[i] ~= '' then
    local set = redis.pcall('SET', KEYS[i], ARGV[i], 'NX', 'PX', ARGV[n + i])
    if set and set.ok then
      set = redis.pcall('SET', KEYS[n + i], digits, 'KEEPTTL')
      if set.ok then reply = now else redis.call('DEL', KEYS[i]) end
    end
  end
  replies[i] = reply
end
return replies
