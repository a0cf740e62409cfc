-- Issues the next fencing token of a lock. Included where it is needed; it uses KEYS and redis only, since a Lua
-- function that keeps locals of the script costs an allocation for each at every run.
--
-- KEYS[3], the fencing counter: integer, lives a week after its last use, all locks' last use being forgotten after that.

-- The counter as a number, 0 if there is none, nil if it holds something else: that is an error, and not
-- floored by the time alone, because the counter may have run ahead of the clock and a lower number must never follow.
local function counter()
  local f = redis.call('GET', KEYS[3])
  if not f then return 0 end
  return tonumber(f)
end

-- The next token after f, the counter as it was read: f + 1, but not below the server's time in microseconds, so that
-- tokens go on rising when the counter is lost. A number while numbers are exact (to 2^53: the year 2255), then digits.
local function fence(f)
  local t = redis.call('TIME')
  local now = t[1] * 1000000 + t[2]
  if f < now then
    redis.call('SET', KEYS[3], string.format('%.0f', now), 'EX', 604800)
    return now
  end
  -- The counter ran ahead of the clock. It must live until the clock has passed it, and the week more: forgotten before,
  -- it would be followed by lower numbers.
  redis.call('INCR', KEYS[3])
  redis.call('EXPIRE', KEYS[3], string.format('%.0f', 604800 + (f - now) / 1000000))
  if f + 1 < 9007199254740992 then return f + 1 end
  return redis.call('GET', KEYS[3])
end
