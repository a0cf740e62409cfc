-- Takes the lock where everything about it is ordinary, and does nothing otherwise.
--
-- KEYS  1 K  the lock     2 F  its fencing counter: see token.lua of the root package
-- ARGV  1 token     2 ms for which K is set, lock delay included
-- Replies
--   n    we hold the lock, with this fencing token, the server's time in µs
--   0    nothing was done: the lock is held, or the counter does not say that nobody waits, or is not below the clock, or its
--        time to live must be set. The full script knows what to do.
-- Never: two holders; a lock past a waiter; a lock for a token that was cancelled.
--
-- The lock first, and the counter read by the write of the new one: where the lock can be had, that is one call less than to ask
-- before. Where it cannot, both are put back as they were. An error is left to the full script to find again.

local set = ARGV[1] ~= '' and redis.pcall('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2])
if set and set.ok then
  local t = redis.call('TIME')
  local us = t[2]
  if #us < 6 then us = string.sub('00000', #us) .. us end
  local digits = t[1] .. us -- string.format costs twice as much
  local now = tonumber(digits)
  local last = redis.pcall('SET', KEYS[2], digits, 'KEEPTTL', 'GET')
  local n = tonumber(last) -- nil: missing, flagged, no number, another type, an error
  -- Below the clock, which is exact below 2^53; and its time to live was set within this hour.
  if n and n < now and n >= now - now % 3600000000 and now < 9007199254740992 then return now end
  if type(last) == 'string' then
    redis.call('SET', KEYS[2], last, 'KEEPTTL')
  elseif not last then
    redis.call('DEL', KEYS[2])
  end
  redis.call('DEL', KEYS[1])
end
return 0
