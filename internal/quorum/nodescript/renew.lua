-- Puts a lease's time on a lock that its token holds on this node, and raises the counter to the fencing token of its
-- lease. It is the renewal, and the raise by which a node accepts a fencing token.
--
-- KEYS  1 K  the lock     2 F  the fencing counter, see node.lua
-- ARGV  1 token     2 ms, lock delay included     3 the lease's fencing token     4 raise: the time stays
--       shorten: for this time and no longer; else '' or not given
-- Replies {1, f, now}  the token holds K, and f is the counter: equal to the lease's, it was accepted here
--         {0}          nobody holds K
--         {-1}         somebody else does, or K is no lock
-- Never: creates a lock; writes to the counter under another's token, who might take it for the number that it was granted
-- with; lowers the counter; changes, with raise, the time of a lock, which may go back to the one whose lease is being adopted;
-- takes time from a lock that has more, but with shorten: a later renewal that asked for more may have arrived before.

local px, fence = tonumber(ARGV[2]), tonumber(ARGV[3])
if not px or px < 1 or px % 1 ~= 0 or not fence or ARGV[1] == '' then
  return redis.error_reply('ERR leasehold: renew wants a token, whole milliseconds from 1 and a fencing token')
end
local owner = redis.pcall('GET', KEYS[1])
if not owner then return {0} end
if type(owner) == 'table' and not string.find(owner.err, 'WRONGTYPE', 1, true) then redis.call('GET', KEYS[1]) end
if owner ~= ARGV[1] then return {-1} end

-- include node.lua

if ARGV[4] == 'shorten' or ARGV[4] ~= 'raise' and redis.call('PTTL', KEYS[1]) < px then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
if counter < fence then
  keep(fence, ARGV[3])
  counter = fence
end
return {1, counter, now}
