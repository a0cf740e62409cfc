-- Leaves the tombstone of a token that was given up, so that a command of it that is still on its way does nothing when it
-- arrives, and sets the flag of the fencing counter: see token.lua. Included where it is needed; KEYS are those of acquire.lua,
-- ms is the server's time. A run removes 256 old ones at most, since Redis does nothing else meanwhile.
local function bury(token, ms)
  -- A deletion first, be it of nothing: a full server allows any write behind one.
  redis.call('ZREM', KEYS[5], token, unpack(redis.call('ZRANGEBYSCORE', KEYS[5], '-inf', ms, 'LIMIT', 0, 256)))
  redis.call('ZADD', KEYS[5], ms + 60000, token)
  redis.call('PEXPIRE', KEYS[5], 60000)
  local f = redis.pcall('GET', KEYS[3])
  if type(f) == 'string' and tonumber(f) then redis.call('SET', KEYS[3], f .. '+', 'KEEPTTL') end
end
