-- What jobs are labelled with: the kind says which function does one, the group whose share of the queue it uses.

ALTER TABLE everlog_queue_item ADD COLUMN kind TEXT NOT NULL DEFAULT '';
ALTER TABLE everlog_queue_item ADD COLUMN grp TEXT NOT NULL DEFAULT '';
