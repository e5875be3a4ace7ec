"""The truth's schema: connection pool, migrations, backend identity. All SQL names the schema explicitly."""
