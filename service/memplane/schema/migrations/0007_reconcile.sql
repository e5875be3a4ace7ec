-- Runs that can be taken up again, incremental ones, and the memories that a run names (see reconcile/runs.py).

ALTER TABLE {schema}.reconciliation_run
    ADD COLUMN generation_id BIGINT,
    ADD COLUMN lineage       TEXT,
    ADD COLUMN since         XID8,
    ADD COLUMN reason        TEXT,
    ADD COLUMN holder        UUID,
    ADD COLUMN heartbeat_at  TIMESTAMPTZ,
    ADD COLUMN resumed       INT NOT NULL DEFAULT 0,
    ADD COLUMN unchecked     BIGINT NOT NULL DEFAULT 0;
COMMENT ON COLUMN {schema}.reconciliation_run.started_at IS 'when it began; a run that was taken up again keeps it';
COMMENT ON COLUMN {schema}.reconciliation_run.position IS 'everything up to this memory id is compared';
COMMENT ON COLUMN {schema}.reconciliation_run.watermark IS 'changes of transactions below it need not be looked at again';
COMMENT ON COLUMN {schema}.reconciliation_run.lineage IS 'system identifier and timeline of the server: transaction ids compare only within one';
COMMENT ON COLUMN {schema}.reconciliation_run.since IS 'the watermark from which an incremental run looks at changes';
COMMENT ON COLUMN {schema}.reconciliation_run.reason IS 'why a full run took the place of an incremental one';
COMMENT ON COLUMN {schema}.reconciliation_run.holder IS 'token of the process that works on it; another one writes nothing';
COMMENT ON COLUMN {schema}.reconciliation_run.unchecked IS 'vectors that could not be compared: no embedding is stored';

-- Every dead memory that a run has met in its target is here, and the first few of the living that differ.
CREATE TABLE {schema}.reconciliation_finding (
    run_id    BIGINT NOT NULL REFERENCES {schema}.reconciliation_run ON DELETE CASCADE,
    memory_id BIGINT NOT NULL,
    type      TEXT NOT NULL,
    detail    TEXT NOT NULL DEFAULT '',
    settled   BOOLEAN NOT NULL DEFAULT FALSE,
    PRIMARY KEY (run_id, memory_id, type)
);
COMMENT ON COLUMN {schema}.reconciliation_finding.type IS
    'a kind of difference; "unsettled" is no difference: a dead memory was still there, and its event on the way';
COMMENT ON COLUMN {schema}.reconciliation_finding.settled IS 'an orphan that was looked at again at the end of a repair run';
CREATE INDEX reconciliation_finding_orphans ON {schema}.reconciliation_finding (run_id, memory_id)
    WHERE type = 'orphan' AND NOT settled;

-- What deleted runs had counted: the metrics are counters, so they must not fall when old runs go.
CREATE TABLE {schema}.reconciliation_total (
    target     TEXT NOT NULL,
    type       TEXT NOT NULL,
    mismatches BIGINT NOT NULL DEFAULT 0,
    repaired   BIGINT NOT NULL DEFAULT 0,
    PRIMARY KEY (target, type)
);
