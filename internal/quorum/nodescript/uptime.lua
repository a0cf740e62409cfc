-- Finds out for how long a node has been up. Included where a key may come into being, so that no restart fits between this
-- reading and the write.
--
-- ARGV[4]      ms of quarantine, 0: none
-- quarantined  nil if the node may vote; else the ms until it may, -1 if INFO does not tell
-- run          the id of this run of the server, '' without a quarantine
-- Uptime counts whole seconds of the wall clock and may say up to one too many: hence one more.
--
-- The fields are found as plain text: a pattern is tried at every place of the reply, which costs more than INFO itself.
--
-- Rejected: LASTSAVE, which is set at a start and only moves forward from there. It proves an uptime for a tenth of the cost of
-- INFO, but does not tell one run from another: a master and a replica that were started in the same second agree on it, and so
-- do two starts of a machine whose clock begins at the same time. A client that knew the former run must notice both.

local quarantined, run = nil, ''
local quarantine = tonumber(ARGV[4])
if quarantine > 0 then
  local info, up = redis.pcall('INFO', 'server')
  if type(info) == 'string' then
    local _, id = string.find(info, 'run_id:', 1, true)
    local _, age = string.find(info, 'uptime_in_seconds:', 1, true)
    run = id and string.match(info, '^%x+', id + 1) or ''
    up = age and tonumber(string.match(info, '^%d+', age + 1) or '')
  end
  if not up then
    quarantined = -1
  elseif up * 1000 < quarantine + 1000 then
    quarantined = quarantine + 1000 - up * 1000
  end
end
