-- Tells who holds a lock and who waits for it. Changes nothing.
--
-- KEYS  1 K  the lock     2 Q  its line     3 F  its fencing counter     4 G  the heartbeats of its waiters
--       5 H  its holders, where several have it: see package several; or not given
-- Reply {token or '', ms left (-2: not held, -1: for ever), last fencing token or '', live waiters}, and, where several have it,
--       how many
-- Of a line of more than a thousand those behind the first thousand are counted, live or not: Redis does nothing else while a
-- line is read.

local t = redis.call('TIME')
local ms = math.floor((t[1] * 1000000 + t[2]) / 1000)
local line, tokens = redis.call('ZRANGE', KEYS[2], 0, 999, 'WITHSCORES'), {}
for i = 1, #line, 2 do tokens[#tokens + 1] = line[i] end
local heartbeats = tokens[1] and redis.call('HMGET', KEYS[4], unpack(tokens)) or {}
local waiters = redis.call('ZCARD', KEYS[2]) - #tokens
for i = 1, #tokens do
  local heartbeat, ticket = heartbeats[i], line[2 * i]
  -- include alive.lua
  if left then waiters = waiters + 1 end
end
local owner, left = redis.call('GET', KEYS[1]) or '', redis.call('PTTL', KEYS[1])
local reply = {owner, left, (string.gsub(redis.call('GET', KEYS[3]) or '', '%+*$', '')), waiters}
if KEYS[5] and (owner == 'leasehold:shared' or owner == 'leasehold:slots') then
  reply[5] = redis.call('ZCOUNT', KEYS[5], '(' .. string.format('%.0f', ms), '+inf')
end
return reply
