-- Hands the lock to the first live waiter. Included, as text, behind token.lua in acquire.lua and release.lua, whose KEYS and
-- ARGV it uses. It wants now (server µs), channel, publish, and first, which is the ZPOPMIN of the line; it leaves
-- head, the token that came first of the living, nil if there is none; room, which is 0 if the line may go on behind as many
-- of the dead as one run clears away; and err, if there was no fencing token to hand the lock with, which the waiter will
-- find out by itself.
--
-- One number rules the line: a waiter's heartbeat is good for the waiter's time to live after each of its polls, and a lock that
-- is handed to the waiter is handed for as long as the heartbeat still lasts. So the dead, one or a hundred, are over together,
-- one time to live after the last of them polled. The clients' clock rules depend on that time (backend.WaiterTTL): it belongs
-- to the protocol and is no option.
--
-- A ticket is the server's time in µs at the arrival, or one more than the ticket before it where that is higher, as after
-- the clock was set back. The caller's own entry is taken whatever its heartbeat, since the caller is here; no lock is handed to
-- it.
--
-- One run clears away 256 of the dead at most, in about a millisecond: Redis does nothing else meanwhile, and an accident or an
-- attack leaves lines of any length. The lock is then free before a line that nobody may pass, and whoever comes next goes on.
local head, err
local room = 256
while first[1] do
  head = first[1]
  local heartbeat, ticket, ms = redis.call('HGET', KEYS[4], head), first[2], math.floor(now / 1000)
  if heartbeat then redis.call('HDEL', KEYS[4], head) end
  if head == ARGV[1] then break end
  -- include alive.lua
  if left then
    local n
    n, err = fence(now, '+')
    if n then
      redis.call('SET', KEYS[1], head, 'PX', left)
      -- Tells the waiter's process, by the two ids in front of the token's secret: see package token. The message may be lost, and
      -- a user who may not publish still releases: the waiter's next poll finds the lock.
      if type(n) == 'number' then n = string.format('%.0f', n) end
      redis.pcall(publish or 'PUBLISH', (channel or 'leasehold:wake:') .. string.sub(head, 1, 16), string.sub(head, 18, 30) .. ' ' .. n)
    end
    break
  end
  head = nil
  room = room - 1
  first = room > 0 and redis.call('ZPOPMIN', KEYS[2]) or {}
end
