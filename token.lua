-- Issues the next fencing token of a lock, at the server's time in µs. Included where it is needed; it uses KEYS and redis
-- only, since a Lua function that keeps locals of the script costs an allocation for each of them at every run.
--
-- KEYS[3], the fencing counter: the last token as decimal digits, with a '+' behind it, the flag, while anything about the
-- key may be unusual. It lives a week after its last use, less an hour at most.
--
-- Digits alone prove that there is neither a line nor a tombstone. So whatever makes a place in the line or a tombstone sets
-- the flag in the same script, and only a script that has found neither of them may write a number without it. A counter
-- that is missing proves nothing. It is not made by setting the flag; a number that is written where there was none gets the
-- flag, unless the same script has found neither line nor tombstone. That is what the short scripts rely on, which look at
-- nothing but the lock and its counter (package short). The rule is model-checked: see proof/line.
--
-- A second '+' says that the time to live was shortened (finish.lua), so the next token sets it anew, whoever issues it. For
-- all else it is the flag.
--
-- A token is the server's time in microseconds, or one more than the counter where that is higher. So tokens go on rising
-- when the counter is lost (FLUSHALL, eviction, a failover that missed the last writes), and the counter may be forgotten
-- after days: it is needed only while it is ahead of the clock, as after the clock was set back. Not INCR: it would be
-- written over by the time in all but the rarest call.
--
-- flag is '' where the script has found neither line nor tombstone, and else '+'.
-- Answers a number while numbers are exact (to 2^53: the year 2255), then digits; or nil and the error, with the counter as
-- it was. A counter that holds no number is an error, and not floored by the time alone: it may have been ahead of the
-- clock, and a lower number must never follow.
local function fence(now, flag)
  local stamp = string.format('%.0f', now) .. flag
  local last = redis.pcall('SET', KEYS[3], stamp, 'KEEPTTL', 'GET')
  if type(last) == 'table' and string.find(last.err, 'syntax error', 1, true) then -- Redis 6.0 does not know SET … GET
    last = redis.pcall('GET', KEYS[3])
    if type(last) ~= 'table' then redis.call('SET', KEYS[3], stamp, 'KEEPTTL') end
  end
  if type(last) == 'table' then
    last.err = last.err .. ': KEYS[3]' -- whose name is put there by who reads it
    return nil, last
  end
  local n = last and (tonumber(last) or tonumber((string.gsub(last, '%+*$', ''))))
  local brief = last and string.find(last, '++', 1, true)
  if n and n < now and not brief and math.floor(n / 3600000000) == math.floor(now / 3600000000) then
    return now -- and its time to live was set within this hour
  end
  if not last or n and n < now then
    redis.call('EXPIRE', KEYS[3], 604800)
    return now
  end
  local digits = string.match(last, '^(%d+)%+*$')
  redis.call('SET', KEYS[3], digits or last, 'KEEPTTL')
  if not digits then
    return nil, redis.error_reply('ERR leasehold: the fencing counter KEYS[3] holds no number')
  end
  local err = redis.pcall('INCR', KEYS[3])
  if type(err) == 'table' then
    redis.call('SET', KEYS[3], last, 'KEEPTTL')
    err.err = err.err .. ': KEYS[3]'
    return nil, err
  end
  -- It must live until the clock has passed it, and the week more: forgotten before, it would be followed by lower numbers.
  redis.call('EXPIRE', KEYS[3], string.format('%.0f', 604800 + (n - now) / 1000000))
  digits = redis.call('GET', KEYS[3])
  if flag ~= '' then redis.call('SET', KEYS[3], digits .. flag, 'KEEPTTL') end
  if n + 1 < 9007199254740992 then return n + 1 end
  return digits
end
