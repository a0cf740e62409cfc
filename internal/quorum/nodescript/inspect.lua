-- Tells who holds the lock on one node of a quorum. Changes nothing.
--
-- KEYS  1 K  the lock     2 F  the fencing counter
-- Reply {token or '', ms left (-2: not held, -1: for ever), counter or ''}

local owner, left = redis.call('GET', KEYS[1]) or '', redis.call('PTTL', KEYS[1])
return {owner, left, redis.call('GET', KEYS[2]) or ''}
