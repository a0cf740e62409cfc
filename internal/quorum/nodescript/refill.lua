-- Gives a lease the node that it does not have: one that was slow or taken when the lease was acquired, or that lost its
-- data since. Sent only when a majority has just confirmed the lease.
--
-- KEYS  1 K  the lock     2 F  the fencing counter, see node.lua
-- ARGV  1 token     2 ms, lock delay included     3 the lease's fencing token     4 ms of quarantine, 0: none
-- Replies  {1, f, now, run}    the lock was set
--          {0}                 somebody holds it
--          {-1, ms, now, run}  in quarantine: nothing was written
--          as acquire.lua
-- Never: takes a node in quarantine, although the lease is its holder's by right. An acquire of somebody else may have
-- been granted here before the data were lost; two leases would then count this node.

local px, fence = tonumber(ARGV[2]), tonumber(ARGV[3])
if not px or px < 1 or px % 1 ~= 0 or not fence or not tonumber(ARGV[4]) or ARGV[1] == '' then
  return redis.error_reply('ERR leasehold: refill wants a token, whole milliseconds from 1, a fencing token and a quarantine')
end

-- include node.lua
-- include uptime.lua

if quarantined then return {-1, quarantined, now, run} end
if redis.call('EXISTS', KEYS[1]) == 1 then return {0} end
if counter < fence then
  keep(fence, ARGV[3])
  counter = fence
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return {1, counter, now, run}
