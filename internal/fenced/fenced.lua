-- fenced: runs the caller's body, unless the resource has seen a higher fencing token.
--
-- KEYS[1]      the mark: the highest fencing token that the resource has seen, in decimal; behind it, after a blank, the
--              highest one of a shared lease that came after it (then the first one may be 0: none)
-- KEYS[2..]    the body's keys
-- ARGV[..n-1]  the body's arguments
-- ARGV[n]      the fencing token: 1 .. 2^63-1 in decimal, no leading zero; r before it: that of a shared lease
--
-- Replies {1, what the body returned}, {0, the higher fencing token}, {0, mark} where the mark is none, or the
-- error of the body. Never runs the body under a mark it cannot read; never lowers a mark; never raises one
-- for a body that failed.
--
-- Shared leases hold together, so one must not be refused for the fencing token of another. It is refused for
-- a higher one of an exclusive lease; and an exclusive one for a higher one of any lease. A version of this
-- script that knows no shared leases cannot read a mark with two numbers, and refuses.
--
-- NewFencedScript puts "local body = (function() …\nend)" in front of this text. So the body cannot see the
-- locals below, an error in it names the line that it has there, and, thanks to the parentheses, a body with
-- an "end" too many does not compile. An unfinished long comment must not find its end here: this file has
-- no two closing brackets in a row.

-- What is left in KEYS and ARGV is what the caller gave.
local mark = table.remove(KEYS, 1)
local shared, token = table.remove(ARGV):match('^(r?)(%d+)$')
shared = shared == 'r'

local seen = redis.pcall('GET', mark)
if type(seen) == 'table' then
  seen.err = seen.err .. ' (fencing mark ' .. mark .. ')'
  return seen
end

-- A Lua number is exact only up to 2^53. Decimals of one length are in the order of their bytes.
local function reaches(n) return #n < #token or #n == #token and n <= token end

local alone, joint = string.match((seen or '0') .. ' 0', '^(%d+) (%d+)')
if seen and not (seen:find('^[1-9]%d*$') or seen:find('^[1-9]%d* [1-9]%d*$') or seen:find('^0 [1-9]%d*$')) then
  return {0, seen}
end
if not reaches(alone) or not shared and not reaches(joint) then
  return {0, (shared or reaches(joint)) and alone or joint}
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
if shared then token = alone .. ' ' .. (reaches(joint) and token or joint) end
redis.call('SET', mark, token, 'EX', '2592000')
return {1, result}
