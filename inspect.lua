-- Tells who holds a lock and who waits for it. Changes nothing.
--
-- KEYS  1 K  the lock     2 Q  its line     3 F  its fencing counter     4 G  the marks of its waiters
-- Reply {token or '', ms left (-2: not held, -1: for ever), last fencing token or '', live waiters}

local t = redis.call('TIME')
local now = math.floor((t[1] * 1000000 + t[2]) / 1000)
local line, waiters = redis.call('ZRANGE', KEYS[2], 0, -1, 'WITHSCORES'), 0
for i = 1, #line, 2 do -- as line.lua judges them
  local good = redis.call('HGET', KEYS[4], line[i])
  good = good and (tonumber(good) or 0) or math.floor(line[i + 1] / 1000) + 2500
  if now < good and good <= now + 2500 then waiters = waiters + 1 end
end
local owner, left = redis.call('GET', KEYS[1]) or '', redis.call('PTTL', KEYS[1])
return {owner, left, redis.call('GET', KEYS[3]) or '', waiters}
