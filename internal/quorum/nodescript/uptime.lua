-- Finds out for how long a node has been up. Included where a key may come into being, so that no restart fits between this
-- reading and the write.
--
-- ARGV[4]      ms of quarantine, 0: none
-- quarantined  nil if the node may vote; else the ms until it may, -1 if INFO does not tell
-- run          the id of this run of the server, '' without a quarantine
-- Uptime counts whole seconds of the wall clock and may say up to one too many: hence one more.

local quarantined, run = nil, ''
local quarantine = tonumber(ARGV[4])
if quarantine > 0 then
  local info = redis.pcall('INFO', 'server')
  local up
  if type(info) == 'string' then
    up = tonumber(string.match(info, 'uptime_in_seconds:(%d+)') or '')
    run = string.match(info, 'run_id:(%x+)') or ''
  end
  if not up then
    quarantined = -1
  elseif up * 1000 < quarantine + 1000 then
    quarantined = quarantine + 1000 - up * 1000
  end
end
