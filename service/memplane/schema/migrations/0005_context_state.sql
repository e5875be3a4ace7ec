-- Working contexts of the CONTEXT worker, kept per tenant and scope for a time (see workers/context/postgres_state.py).
-- Temporary by nature: no outbox, no projection, nothing to reconcile.

CREATE TABLE {schema}.context_state (
    tenant     TEXT NOT NULL,
    scope_key  BYTEA NOT NULL,
    version    UUID NOT NULL,
    document   TEXT NOT NULL,
    expires_at TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (tenant, scope_key)
);
COMMENT ON COLUMN {schema}.context_state.scope_key IS 'SHA-256 of the canonical JSON of the scope';
COMMENT ON COLUMN {schema}.context_state.document IS 'canonical JSON; TEXT, because jsonb would change its numbers';
CREATE INDEX context_state_expiry ON {schema}.context_state (expires_at);
