-- Leaves the tombstone of a token that was given up, so that a command of it that is still on its way does nothing when it
-- arrives. Included where it is needed; KEYS[5] are the tombstones, as acquire.lua says; ms is the server's time. A run removes
-- 256 old ones at most, since Redis does nothing else meanwhile.
local function bury(token, ms)
  -- A deletion first, be it of nothing: a full server allows any write behind one.
  redis.call('ZREM', KEYS[5], token, unpack(redis.call('ZRANGEBYSCORE', KEYS[5], '-inf', ms, 'LIMIT', 0, 256)))
  redis.call('ZADD', KEYS[5], ms + 60000, token)
  redis.call('PEXPIRE', KEYS[5], 60000)
end
