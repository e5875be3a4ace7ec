-- Tables that another application made and still writes (see memplane.adoption), and projections in Shadow mode.

CREATE TABLE {schema}.adoption (
    singleton   BOOLEAN PRIMARY KEY DEFAULT TRUE CHECK (singleton),
    stage       TEXT NOT NULL CHECK (stage IN ('backfill', 'index', 'adopted', 'finished')),
    document    JSONB NOT NULL,
    position    BIGINT,
    done        BIGINT NOT NULL DEFAULT 0,
    total       BIGINT NOT NULL DEFAULT 0,
    started_at  TIMESTAMPTZ NOT NULL DEFAULT now(),
    adopted_at  TIMESTAMPTZ,
    finished_at TIMESTAMPTZ,
    captured_at TIMESTAMPTZ
);
COMMENT ON COLUMN {schema}.adoption.document IS 'the table as it was, the settings and the level of the release';
COMMENT ON COLUMN {schema}.adoption.position IS 'everything up to this memory id is backfilled';
COMMENT ON COLUMN {schema}.adoption.captured_at IS 'when a change of the old application was last hashed';

-- Rows that the old application deleted; kept until the adoption ends, so that an id that comes back goes on counting.
CREATE TABLE {schema}.adoption_deleted (
    id            BIGINT PRIMARY KEY,
    tenant        TEXT NOT NULL,
    user_id       TEXT NOT NULL,
    version       BIGINT NOT NULL,
    edges_version BIGINT NOT NULL,
    deleted_at    TIMESTAMPTZ NOT NULL DEFAULT now(),
    settled_at    TIMESTAMPTZ
);
COMMENT ON COLUMN {schema}.adoption_deleted.version IS 'of the delete';
COMMENT ON COLUMN {schema}.adoption_deleted.settled_at IS 'when its events were enqueued';
CREATE INDEX adoption_deleted_unsettled ON {schema}.adoption_deleted (id) WHERE settled_at IS NULL;

-- A projection whose worker ran in Shadow mode lacks what it only compared: going Live repairs all of it.
CREATE TABLE {schema}.projection_shadow (
    target      TEXT PRIMARY KEY,
    compared    BIGINT NOT NULL,
    different   BIGINT NOT NULL,
    repaired    BIGINT NOT NULL DEFAULT 0,
    compared_at TIMESTAMPTZ NOT NULL DEFAULT now()
);
COMMENT ON COLUMN {schema}.projection_shadow.compared IS 'events that ended in Shadow mode, counted in the transactions that end them';
COMMENT ON COLUMN {schema}.projection_shadow.different IS 'those of them whose object in the target was not the truth';
COMMENT ON COLUMN {schema}.projection_shadow.repaired IS 'what compared was when a full repair began that ended well';
