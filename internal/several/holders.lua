-- What the scripts of locks that several hold have in common. Included, as text, at their heads.
--
-- KEYS  1 to 5 as acquire.lua of the root package
--       6 H  the holders: zset, token -> the server time in ms until which it holds; ends with K
--       7 I  their grants: hash, token -> 'fencing token/slot'; ends with K
-- ARGV  1  token; the kind of its lease stands in it, see package token
--
-- While several hold it, K holds a marker, which is no token: the scripts of exclusive locks and foreign clients take it for
-- somebody else's. K ends with the last of the holders. H is believed under a marker alone, and only the script that sets the
-- marker makes H, after deleting what stood there. So a K that goes, by whatever hand, makes H stale for good; and an H or I
-- that goes under a living marker is not made anew: nobody joins, renewals find nothing, and K ends after every lease that may
-- still be trusted. The protocol is model-checked.
--
-- Scripts that know exclusive locks alone hand a free lock to the head of the line, whatever it wants, and put its token into K.
-- The next of these scripts, whoever sends it, makes that a marker with one holder, and serves the rest of the line.
local K, Q, F, G, D, H, I, ME = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], ARGV[1]
local SHARED, SLOTS = 'leasehold:shared', 'leasehold:slots'

-- include token.lua
-- include tombstone.lua

local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local ms = math.floor(now / 1000)

-- The marker of a token's kind, and the number of slots; nil for an exclusive or foreign one.
local function kind(token)
  local a, kind, digits, b, c = string.match(token, '^%w+()([~#])(%w%w%w%w)%w+()%.%w+()')
  if a ~= 17 or b ~= 31 or c ~= 58 or #token > 57 and string.sub(token, 58, 58) ~= '.' then return nil end
  if kind == '~' then return SHARED end
  local n = string.match(digits, '^%d+$') and tonumber(digits)
  if n and n >= 1 and n <= $MAX_SLOTS then return SLOTS, n end
end

local owner              -- what K holds
local converted = false  -- K held a token that a script for exclusive locks had put there
local taken, count, least -- of slots: the numbers in use, how many, and the least number of slots that any holder wants

-- The keys end with the last holder. They must not outlive it: a K without holders looks like one that has lost them.
local function settle()
  local last = tonumber(redis.call('ZRANGE', H, -1, -1, 'WITHSCORES')[2])
  if not last then
    redis.call('DEL', K, H, I)
    owner = nil
    return
  end
  for _, key in ipairs({K, H, I}) do redis.call('PEXPIREAT', key, string.format('%.0f', last)) end
end

-- Reads K and makes it true: before anything else, in every script. It answers an error, if there is one.
local function holders()
  owner = redis.pcall('GET', K) or nil
  if type(owner) ~= 'string' then return end
  local left = kind(owner) and redis.call('PTTL', K) or -1 -- one that somebody has made to last for ever is not ours
  if left >= 0 then
    local f = redis.call('GET', F)
    f = f and string.match(f, '^(%d+)%+*$')
    if not f then
      local n, err = fence(now, '+')
      if not n then return err end
      f = type(n) == 'number' and string.format('%.0f', n) or n
    end
    redis.call('DEL', H, I)
    redis.call('ZADD', H, string.format('%.0f', ms + left), owner)
    redis.call('HSET', I, owner, f .. '/0')
    owner = kind(owner)
    redis.call('SET', K, owner, 'PX', math.max(left, 1))
    settle()
    converted = true
  elseif owner == SHARED or owner == SLOTS then
    local over = redis.call('ZRANGEBYSCORE', H, '-inf', string.format('%.0f', ms), 'LIMIT', 0, 1000)
    if over[1] then
      redis.call('ZREM', H, unpack(over))
      redis.call('HDEL', I, unpack(over))
      settle() -- a K that is over in this very ms still lives
    end
  end
end

-- Whether a token has the lock together with others.
local function grant(token)
  return (owner == SHARED or owner == SLOTS) and redis.call('ZSCORE', H, token) and redis.call('HGET', I, token)
end

-- Whether a token may have the lock beside those who have it. The least number of slots that any of them and the newcomer want
-- rules, so nobody is ever beside more than its own number allows.
local function fits(token)
  if not owner then return true end
  local m, n = kind(token)
  if not m or owner ~= m or redis.call('EXISTS', H, I) ~= 2 then return false end
  if m == SHARED then return true end
  if not taken then
    taken, count, least = {}, 0, $MAX_SLOTS
    local all = redis.call('HGETALL', I)
    for i = 1, #all, 2 do
      local _, its = kind(all[i])
      least, count = math.min(least, its or 0), count + 1
      taken[tonumber(string.match(all[i + 1], '/(%d+)$')) or 0] = true
    end
  end
  return count < math.min(n, least)
end

-- Gives the lock to a token that fits. Answers its fencing token, in digits, and its slot; or nil and the error, before anything
-- has changed.
local function put(token, px)
  local f, err = fence(now, '+')
  if not f then return nil, err end
  if type(f) == 'number' then f = string.format('%.0f', f) end
  local m, n = kind(token)
  if not m then
    redis.call('SET', K, token, 'PX', px)
    owner = token
    return f, 0
  end
  if not owner then
    redis.call('DEL', H, I)
    redis.call('SET', K, m, 'PX', px)
    owner, taken, count, least = m, {}, 0, n or 0
  end
  local slot = 0
  if m == SLOTS then
    while taken[slot] do slot = slot + 1 end
    taken[slot], count, least = true, count + 1, math.min(least, n)
  end
  redis.call('ZADD', H, string.format('%.0f', ms + px), token)
  redis.call('HSET', I, token, f .. '/' .. slot)
  settle()
  return f, slot
end

-- Gives the lock to the heads of the line for as long as they fit; one that does not keeps its place, and nobody passes it. The
-- caller's own token, me, is served with its px, '' if there is none. Answers the caller's fencing token and slot if it was served, or
-- nil and an error. One run serves 100 and clears away 256 of the dead: Redis does nothing else meanwhile. Who is left is served
-- by the next poll.
local function serve(me, px, channel, publish)
  local grants, room = 100, 256
  while grants > 0 and room > 0 do
    local first = redis.call('ZRANGE', Q, 0, 0, 'WITHSCORES')
    local head, ticket = first[1], first[2]
    if not head then return end
    local heartbeat = redis.call('HGET', G, head)
    -- include alive.lua
    if head ~= me and not left then
      redis.call('ZREM', Q, head)
      redis.call('HDEL', G, head)
      room = room - 1
    else
      if not fits(head) then return end
      local f, slot = put(head, head == me and px or left)
      if not f then return nil, slot end
      redis.call('ZREM', Q, head)
      redis.call('HDEL', G, head)
      if head == me then
        serve('', 0, channel, publish)
        return f, slot
      end
      local text = string.sub(head, 18, 30) .. ' ' .. f
      if kind(head) then text = text .. '/' .. slot end
      redis.pcall(publish or 'PUBLISH', (channel or 'leasehold:wake:') .. string.sub(head, 1, 16), text)
      if not kind(head) then return end
      grants = grants - 1
    end
  end
end
