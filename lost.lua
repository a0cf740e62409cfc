-- Says why a token does not hold its lock. Included where that was found, so only where something has failed.
--
-- It wants token, and owner, which is what GET of KEYS[1] answered to pcall. KEYS[5], the tombstones, need not be given.
-- why  -1  nobody holds the lock
--      -2  somebody else does
--      -3  the token was given up: somebody has adopted its lease, or it was cancelled
--      -4  the key is no string any more, so it is nobody's lock
-- An error of GET that has another cause is raised.
local why = -1
local tomb = KEYS[5] and redis.pcall('ZSCORE', KEYS[5], token)
if tomb and type(tomb) ~= 'table' then
  why = -3
elseif type(owner) == 'table' then
  why = string.find(owner.err, 'WRONGTYPE', 1, true) and -4 or redis.call('GET', KEYS[1])
elseif owner then
  why = -2
end
