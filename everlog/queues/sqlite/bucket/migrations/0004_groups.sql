-- The order of claims: of jobs without a group, of those with one, and of these group by group. A job without a group
-- is in the first one only, and is found there behind any number of others. No index begins with the Process Date: the
-- planner would sort.

CREATE INDEX IF NOT EXISTS everlog_queue_plain ON everlog_queue_item (jid, priority, process_ms, kh, id)
WHERE status = 'W' AND grp = '';

CREATE INDEX IF NOT EXISTS everlog_queue_grouped ON everlog_queue_item (jid, priority, process_ms, kh, id)
WHERE status = 'W' AND grp <> '';

CREATE INDEX IF NOT EXISTS everlog_queue_group ON everlog_queue_item (jid, priority, grp, process_ms, kh, id)
WHERE status = 'W' AND grp <> '';

CREATE INDEX IF NOT EXISTS everlog_queue_group_lease ON everlog_queue_item (jid, grp)
WHERE status = 'P' AND grp <> '';

DROP INDEX IF EXISTS everlog_queue_ready;
