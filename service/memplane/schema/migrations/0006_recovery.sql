-- Recovery tasks: the document, its history, and who runs it (see recovery/postgres_jobs.py). No outbox, no projection.

CREATE TABLE {schema}.recovery_job (
    job_id     TEXT COLLATE "C" PRIMARY KEY,
    tenant     TEXT NOT NULL,
    user_id    TEXT NOT NULL,
    revision   INTEGER NOT NULL,
    stage      TEXT NOT NULL,
    document   TEXT NOT NULL,
    created_at TIMESTAMPTZ NOT NULL DEFAULT now(),
    changed_at TIMESTAMPTZ NOT NULL DEFAULT now()
);
COMMENT ON COLUMN {schema}.recovery_job.job_id IS
    'unique over all tenants: the keys of its operations at the fulfilment service are made of it';
COMMENT ON COLUMN {schema}.recovery_job.document IS 'JSON; TEXT, because fingerprints depend on the order of its fields';
COMMENT ON COLUMN {schema}.recovery_job.changed_at IS 'when the task reached its present stage';
CREATE INDEX recovery_job_stage ON {schema}.recovery_job (stage, job_id);
CREATE INDEX recovery_job_tenant ON {schema}.recovery_job (tenant, user_id, job_id);

CREATE TABLE {schema}.recovery_event (
    event_id    BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job_id      TEXT COLLATE "C" NOT NULL REFERENCES {schema}.recovery_job ON DELETE CASCADE,
    kind        TEXT NOT NULL,
    data        TEXT NOT NULL,
    recorded_at TIMESTAMPTZ NOT NULL DEFAULT now()
);
COMMENT ON TABLE {schema}.recovery_event IS 'one row per change, holding the whole document, and per noted call';
CREATE INDEX recovery_event_job ON {schema}.recovery_event (job_id, event_id);

CREATE TABLE {schema}.recovery_lease (
    job_id TEXT COLLATE "C" PRIMARY KEY REFERENCES {schema}.recovery_job ON DELETE CASCADE,
    owner  TEXT NOT NULL,
    until  TIMESTAMPTZ NOT NULL
);
COMMENT ON TABLE {schema}.recovery_lease IS 'who runs a task now; a killed worker loses it when `until` has passed';
