-- Gives the lock back as release.lua does, with more that its options ask for: not before its time, until when it rests; and
-- with a shorter life of its fencing counter.
--
-- KEYS  as acquire.lua
-- ARGV  1  token     2 release, told or cancel, as release.lua
--       3  the server's time in µs before which the lock must not be free
--       4  ms for which it rests at most; 0: it does not
--       5  ms for which the fencing counter lives after the lock is free, if nobody waits; 0: as it does
--       6, 7  as 4, 5 of acquire.lua
-- Replies  as release.lua; a lock that rests was given back
-- Idempotent by token: sent again while the lock rests, it replies the same, and the lock rests no longer for it.
-- Never: lengthens the rest of another token; what release.lua never does.
--
-- A resting lock is a key that is taken and nobody's: its value is the token with a '!' behind the secret (package token). So
-- it excludes every client of this key, and ends as any lock does that nobody renews. The token of a lease cannot be told from it
-- by chance, since a token has a '.' there or its end.
--
-- Who knows the fencing token knows when the lock was won, since the server's clock was the fencing token then. That is wrong
-- only if the counter was ahead of the clock, and then the lock rests for as long as the second bound allows.
--
-- A counter that is ahead of the clock keeps its life: forgotten before the clock has passed it, it would be followed by lower
-- numbers. The mark behind its digits has the next fencing token give it the whole life again.

local UNTIL, MOST = tonumber(table.remove(ARGV, 3)), tonumber(table.remove(ARGV, 3))
local LIFE = tonumber(table.remove(ARGV, 3))
if not UNTIL or not MOST or MOST ~= math.floor(MOST) or not LIFE or LIFE ~= math.floor(LIFE) or ARGV[1] == '' then
  return redis.error_reply('ERR leasehold: finish wants a token, a time, and whole milliseconds')
end
local resting = string.sub(ARGV[1], 1, 57) .. '!' .. string.sub(ARGV[1], 58)
local value = redis.pcall('GET', KEYS[1])
local rests = value == resting
if value == ARGV[1] then
  local t = redis.call('TIME')
  local now = t[1] * 1000000 + t[2]
  local left = math.min(math.ceil((UNTIL - now) / 1000), MOST)
  if LIFE > 0 and redis.call('EXISTS', KEYS[2]) == 0 then
    local last = redis.pcall('GET', KEYS[3])
    local digits = type(last) == 'string' and string.match(last, '^(%d+)%+*$')
    if digits and tonumber(digits) <= now then
      redis.call('PEXPIRE', KEYS[3], LIFE + math.max(left, 0)) -- first, as below
      redis.call('SET', KEYS[3], digits .. '++', 'KEEPTTL')
    end
  end
  if left > 0 then
    redis.call('PEXPIRE', KEYS[1], left) -- first, since a full server allows any write behind this one
    redis.call('SET', KEYS[1], resting, 'KEEPTTL')
    rests = true
    -- The first waiter has to hear when the lock will be free. A message without a fencing token has it poll.
    local first = redis.pcall('ZRANGE', KEYS[2], 0, 0)[1]
    if first then
      redis.pcall(ARGV[4] or 'PUBLISH', (ARGV[3] or 'leasehold:wake:') .. string.sub(first, 1, 16), string.sub(first, 18, 30))
    end
  end
end
if rests then
  if ARGV[2] == 'cancel' then
    -- include tombstone.lua
    local t = redis.call('TIME')
    bury(ARGV[1], t[1] * 1000 + math.floor(t[2] / 1000))
  end
  return 1
end
-- include release.lua
