-- A queue's statistics are always stale: analyzed while it is empty, it may hold a million rows a minute later. So no
-- plan may depend on them. The extra conditions below admit these indexes only to statements that repeat them (the
-- range scans of claims and reclaims), so that a lookup by memory is left with the index that leads to one row.

DROP INDEX {schema}.idx_memory_outbox_ready;
CREATE INDEX idx_memory_outbox_ready ON {schema}.memory_outbox (target, available_at, id)
    WHERE status = 'pending' AND available_at > '-infinity';
DROP INDEX {schema}.idx_memory_outbox_stale_lock;
CREATE INDEX idx_memory_outbox_stale_lock ON {schema}.memory_outbox (target, locked_until)
    WHERE status = 'processing' AND locked_until > '-infinity';

-- Every event is updated twice, so dead rows pile up quickly and claims would have to step over them.
ALTER TABLE {schema}.memory_outbox SET (
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_insert_scale_factor = 0.1,
    autovacuum_analyze_scale_factor = 0.02,
    autovacuum_vacuum_cost_delay = 0
);
