-- Consolidation and purge (see consolidation/apply.py and purge/sweep.py; seed `002` sections 7 and 10.3).

-- The audit chain of merges. No foreign keys: an entry outlives the tombstones that it names.
CREATE TABLE {schema}.memory_supersedes (
    superseded_id      BIGINT PRIMARY KEY,
    survivor_id        BIGINT NOT NULL,
    tenant             TEXT NOT NULL,
    user_id            TEXT NOT NULL,
    rule               TEXT NOT NULL,
    reason             TEXT NOT NULL,
    superseded_version BIGINT NOT NULL,
    survivor_version   BIGINT NOT NULL,
    created_at         TIMESTAMPTZ NOT NULL DEFAULT now()
);
COMMENT ON COLUMN {schema}.memory_supersedes.superseded_version IS 'the version that was merged away, before its tombstone';
COMMENT ON COLUMN {schema}.memory_supersedes.survivor_version IS 'the version of the survivor after the merge';
CREATE INDEX memory_supersedes_survivor ON {schema}.memory_supersedes (survivor_id);
CREATE INDEX memory_supersedes_created ON {schema}.memory_supersedes (created_at);

-- When every event of a tombstone was known to be finished: its events may be pruned long before it is purged.
ALTER TABLE {schema}.long_term_memory ADD COLUMN settled_at TIMESTAMPTZ;
COMMENT ON COLUMN {schema}.long_term_memory.settled_at IS 'only of tombstones: no event of the delete was unfinished at this time';

CREATE INDEX long_term_memory_unsettled ON {schema}.long_term_memory (id)
    WHERE deleted_at IS NOT NULL AND (settled_at IS NULL OR settled_at < deleted_at);

-- Which memories hold a text: for duplicates, and to tell which stored embeddings nobody uses any more.
CREATE INDEX long_term_memory_text ON {schema}.long_term_memory USING hash (text_hash) WHERE deleted_at IS NULL;
CREATE INDEX memory_edge_tombstone ON {schema}.memory_edge (deleted_at) WHERE deleted_at IS NOT NULL;

-- What has been done, for metrics: the rows themselves are gone.
CREATE TABLE {schema}.upkeep_total (
    activity TEXT NOT NULL,
    kind     TEXT NOT NULL,
    total    BIGINT NOT NULL,
    PRIMARY KEY (activity, kind)
);
