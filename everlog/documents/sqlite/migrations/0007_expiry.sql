-- When a body is to be deleted, for those that were written with a time to live.
ALTER TABLE content ADD COLUMN expires_at INTEGER;
CREATE INDEX content_expires ON content (expires_at, document_uri, item_id) WHERE expires_at IS NOT NULL;
