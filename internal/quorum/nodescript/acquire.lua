-- Takes the lock on one node of a quorum, if it is nobody's or, to adopt a lease, the former holder's; and names the fencing
-- token that this node would give.
--
-- KEYS  1 K  the lock: string, the holder's token, PX
--       2 F  the fencing counter, see node.lua
-- ARGV  1  token of this attempt
--       2  ms for which K is set, lock delay included
--       3  the fencing token that the client proposes, in microseconds as TIME, in decimal digits; 0: none
--       4  ms of quarantine after a restart; 0: none
--       5  the token whose lease is adopted, else not given
-- Replies
--   {1, f, now, run}        we hold the lock here; f is the counter
--   {0, ms, now, run, f}    somebody else does, for ms more (-1: for ever); or nobody, where a lease is adopted (-2)
--   {-1, ms, now, run}      in quarantine for ms more (-1: INFO does not tell the uptime); nothing was written
--   now is TIME in microseconds, run the server's run_id, '' without a quarantine
-- Idempotent by token: sent twice, it answers the same, and K's expiry does not move.
-- Never: believes that a counter that is still there proves that nothing was lost; shortens the time of a lease that is
-- adopted, since the adoption may fail and the lock go back.

local px = tonumber(ARGV[2])
local proposal = tonumber(ARGV[3])
if not px or px < 1 or px % 1 ~= 0 or not proposal or not tonumber(ARGV[4]) or ARGV[1] == '' then
  return redis.error_reply('ERR leasehold: acquire wants a token, whole milliseconds from 1, a proposal and a quarantine')
end

-- include node.lua
-- include uptime.lua

if quarantined then return {-1, quarantined, now, run} end
local owner, from = redis.call('GET', KEYS[1]), ARGV[5] or false
if owner == ARGV[1] and stored then return {1, counter, now, run} end
if owner ~= from and owner ~= ARGV[1] then return {0, redis.call('PTTL', KEYS[1]), now, run, counter} end

-- A proposal is a hint. One that is far from this clock would carry somebody's mistake into the counter.
if proposal > now + 1000000 then proposal = 0 end
local f = math.max(counter + 1, proposal, now)
-- The counter first: should the second write be refused, nothing holds the lock.
keep(f, f == proposal and ARGV[3])
if not owner or owner == from and redis.call('PTTL', KEYS[1]) < px then
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
elseif owner == from then
  redis.call('SET', KEYS[1], ARGV[1], 'KEEPTTL')
end
return {1, f, now, run}
