-- Serves the waiters of a lock. Included behind fence.lua; KEYS and ARGV are those of acquire.lua and release.lua.
--
-- One number rules the line: a waiter's mark is good for CLAIM ms after each of its looks, and a lock that is handed to
-- it is handed for as long as the mark still lasts. So the dead, one or a hundred, are over together, CLAIM after the
-- last of them looked. The clients' clock rules depend on CLAIM (claim in store.go): it belongs to the protocol and is
-- no option.

local CLAIM = 2500

local function millis()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end

-- Takes the first waiter out of the line, and every dead one before it: its token, and the ms for which its mark still
-- lasts. An entry without a mark is dead; so is one whose mark ends now, or else marks that are as old as an expired
-- claim would cost one claim more; a mark from the future, which a clock set back leaves, is not believed. The caller's
-- own entry is answered whatever its mark, since it is here.
local function next_waiter()
  local now = millis()
  while true do
    local t = redis.call('ZPOPMIN', KEYS[2])[1]
    if not t then return nil end
    local good = tonumber(redis.call('HGET', KEYS[4], t) or '')
    redis.call('HDEL', KEYS[4], t)
    if t == ARGV[1] then return t end
    if good and now < good and good <= now + CLAIM then return t, good - now end
  end
end

-- Hands the lock to waiter t for left ms and tells its Locker, whose id is the first 16 characters of the token. The
-- message may be lost, and a user who may not publish still releases: the waiter's next look finds the lock. Answers nil
-- and the error if there is no fencing token to hand it with; the waiter will meet the same one.
local function give(t, left)
  local n, err = fence()
  if not n then return nil, err end
  redis.call('SET', KEYS[1], t, 'PX', left)
  if type(n) == 'number' then n = string.format('%.0f', n) end
  redis.pcall(ARGV[5] or 'PUBLISH', ARGV[4] .. string.sub(t, 1, 16), t .. ' ' .. n .. ' ' .. redis.call('ZCARD', KEYS[2]))
  return n
end
