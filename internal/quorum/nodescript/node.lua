-- What a node's clock and counter say. Included by the scripts of a quorum's nodes; it uses KEYS[2] only.
--
-- KEYS[2], the fencing counter: integer, lives a week after the later of now and the time that it stands for: one that
-- ran ahead of the clock must not go before the clock has passed it, or lower numbers would follow.
-- Both are exact below 2^53 (the year 2255 in microseconds); a node beyond that is a missing vote.

local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local stored = redis.call('GET', KEYS[2])
local counter = 0
if stored then counter = tonumber(string.match(stored, '^%d+$') or '') end
if not counter or counter >= 9007199254740992 or now >= 9007199254740992 then
  return redis.error_reply('ERR leasehold: the fencing counter KEYS[2] or the clock is no number below 2^53')
end

-- Sets the counter to v, of which digits are the decimal digits if they are at hand, else false. A time to live that covers
-- whatever is less than a second ahead of the clock is at hand as well: to write a number out costs as much as a call.
local function keep(v, digits)
  local ms = '604801000'
  if v > now + 1000000 then ms = string.format('%.0f', 604801000 + (v - now) / 1000) end
  redis.call('SET', KEYS[2], digits or string.format('%.0f', v), 'PX', ms)
end
