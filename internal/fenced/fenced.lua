-- fenced: runs the caller's body, unless the resource has seen a higher fencing token.
--
-- KEYS[1]      the mark: the highest fencing token that the resource has seen, in decimal
-- KEYS[2..]    the body's keys
-- ARGV[..n-1]  the body's arguments
-- ARGV[n]      the fencing token: 1 .. 2^63-1 in decimal, no leading zero
--
-- Replies {1, what the body returned}, {0, mark} where the mark is higher or no fencing token at all, or the
-- error of the body. Never runs the body under a mark it cannot read; never lowers a mark; never raises one
-- for a body that failed.
--
-- NewFencedScript puts "local body = (function() …\nend)" in front of this text. So the body cannot see the
-- locals below, an error in it names the line that it has there, and, thanks to the parentheses, a body with
-- an "end" too many does not compile. An unfinished long comment must not find its end here: this file has
-- no two closing brackets in a row.

-- What is left in KEYS and ARGV is what the caller gave.
local mark = table.remove(KEYS, 1)
local token = table.remove(ARGV)

local seen = redis.pcall('GET', mark)
if type(seen) == 'table' then
  seen.err = seen.err .. ' (fencing mark ' .. mark .. ')'
  return seen
end

-- A Lua number is exact only up to 2^53. Decimals of one length are in the order of their bytes.
local admitted = not seen or seen == token
  or seen:find('^[1-9]%d*$') and (#seen < #token or #seen == #token and seen <= token)
if not admitted then
  return {0, seen}
end

local result = body()
if type(result) == 'table' and result.err then
  return result
end

-- After the body, so that one which only reads can still be killed, and one which only deletes still runs
-- when the memory is full. Redis does not refuse a later write of a script that has already written, so a
-- body that wrote cannot leave its mark behind.
--
-- The mark lives for 30 days after its last use. Until then every older holder is refused, however long it
-- slept. No TTL of a lease sets a bound for that: what matters is how long a stopped process, a suspended
-- machine or a request in a queue can stay away and still come back. That is hours, at times days. Without an
-- end there would be one key for every resource there ever was.
redis.call('SET', mark, token, 'EX', '2592000')
return {1, result}
