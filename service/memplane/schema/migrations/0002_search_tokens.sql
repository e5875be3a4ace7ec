-- Keyword search without extensions: lexemes made by plugins/postgres/tokens.py (design section 8).
-- NULL and version 0 mean "not yet tokenized": rows of an older release are filled in by a bounded job.

ALTER TABLE {schema}.long_term_memory
    ADD COLUMN search_tokens  TSVECTOR,
    ADD COLUMN tokens_version SMALLINT NOT NULL DEFAULT 0;
COMMENT ON COLUMN {schema}.long_term_memory.search_tokens IS 'lexemes without positions, each behind four characters that hash its scope';

-- A small pending list: every search reads it from end to end.
CREATE INDEX long_term_memory_tokens ON {schema}.long_term_memory USING gin (search_tokens)
    WITH (gin_pending_list_limit = 512) WHERE deleted_at IS NULL;
CREATE INDEX long_term_memory_untokenized ON {schema}.long_term_memory (id) WHERE deleted_at IS NULL AND tokens_version < 1;
