-- Tells who holds a lock and who waits for it. Changes nothing.
--
-- KEYS  1 K  the lock     2 Q  its line     3 F  its fencing counter     4 G  the marks of its waiters
-- Reply {token or '', ms left (-2: not held, -1: for ever), last fencing token or '', live waiters}

local t = redis.call('TIME')
local now = math.floor((t[1] * 1000000 + t[2]) / 1000)
local waiters = 0
for _, good in ipairs(redis.call('HVALS', KEYS[4])) do
  good = tonumber(good)
  if good and now < good and good <= now + 2500 then waiters = waiters + 1 end -- as line.lua judges them
end
return {redis.call('GET', KEYS[1]) or '', redis.call('PTTL', KEYS[1]), redis.call('GET', KEYS[3]) or '', waiters}
