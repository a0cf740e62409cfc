-- Says whether a waiter counts as alive, and for how long. This is the one place of that rule.
--
-- It wants heartbeat, the waiter's field in the hash of the heartbeats, or nil or false; ticket, its score in the line; and ms,
-- the server's time. It leaves left, the ms for which the waiter still counts as alive, or nil if the waiter is dead.
--
-- A heartbeat is good until the time that it names. A ticket, which is the time of arrival in microseconds, is the first
-- heartbeat: most waiters are served before they poll, and have no other. One that ends now is dead, or else heartbeats that are
-- as old as an expired one would cost one more time to live. One from the future, which a clock set back leaves, is not believed.
local left = (heartbeat and (tonumber(heartbeat) or 0) or math.floor(ticket / 1000) + $WAITER_TTL) - ms
if left <= 0 or left > $WAITER_TTL then left = nil end
