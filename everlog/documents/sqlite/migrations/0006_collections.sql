-- The collections that are there, in order: a list of them passes no document.
CREATE INDEX head_collections ON head (document_uri) WHERE substr(document_uri, -1) = '~' AND NOT is_deleted;
