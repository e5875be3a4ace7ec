"""`/v1/admin/…`: the outbox, one memory's state, reconciliation, drift, status. Read from PostgreSQL alone."""
