-- When a journal expires, to the millisecond: expire_on is the day of it.
ALTER TABLE metajournal ADD COLUMN expire_at INTEGER;
