-- What a repetition of a request with an id is answered with.
CREATE TABLE message (
    document_uri TEXT NOT NULL,
    message_id   TEXT NOT NULL,
    stored_at    INTEGER NOT NULL,
    answer       TEXT NOT NULL,
    PRIMARY KEY (document_uri, message_id)
);
CREATE INDEX message_stored ON message (stored_at);

-- The head only counts them, by quarter hours.
ALTER TABLE head DROP COLUMN messages;
ALTER TABLE head ADD COLUMN messages TEXT NOT NULL DEFAULT '[]';
