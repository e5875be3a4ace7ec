"""The transactional outbox: events, claims, retries, workers. Targets are described here and implemented above."""
