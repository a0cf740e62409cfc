-- Gives the lock back, to the first waiter if there is one; or gives a place in the line up.
--
-- KEYS  1 to 4 as acquire.lua
--       5 D  the tombstones, as there; given with cancel, and with told
-- ARGV  1  token, '' with force
--       2  release  the end of a lease
--          told     the same of one whose token others may know: says whether it was adopted
--          cancel     the end of an attempt, whatever came of it: leaves a tombstone, so that a command of this token
--                   that is still on its way does nothing when it arrives
--          force    an operator's: whoever holds the lock
--       3, 4  as 4, 5 of acquire.lua
-- Replies
--   1         the lock was given back
--   2         the place in the line was given up
--   -1 to -4  there was neither, for the reason that lost.lua says
--   with force the token whose lock it was, or -1 if it was nobody's, or -4 if the key held no string; it is gone now
-- Never: touches the lock of another token (but for force); lets it stand free while somebody live waits, unless that is behind
-- more of the dead than one run clears away (handover.lua); creates a lock for the token it was given; fails for want of memory, or
-- for what somebody wrote over the counter.

local K, Q, MODE = KEYS[1], KEYS[2], ARGV[2]
local owner, done = redis.pcall('GET', K), 1
if owner ~= ARGV[1] then
  local token = ARGV[1]
  -- include lost.lua
  done = why
end
if done == 1 or MODE == 'force' then
  local handed = false
  local first = redis.call('ZPOPMIN', Q)
  if first[1] then
    local channel, publish = ARGV[3], ARGV[4]
    local t = redis.call('TIME')
    local now = t[1] * 1000000 + t[2]
    -- include token.lua
    -- include handover.lua
    handed = head and head ~= ARGV[1] and not err
  end
  if not handed then redis.call('DEL', K) end
  if MODE == 'force' and type(owner) == 'string' then return owner end
elseif redis.call('ZREM', Q, ARGV[1]) == 1 then
  redis.call('HDEL', KEYS[4], ARGV[1])
  done = 2
end
if MODE == 'cancel' then
  -- include tombstone.lua
  local t = redis.call('TIME')
  bury(ARGV[1], t[1] * 1000 + math.floor(t[2] / 1000))
end
return done
