"""PostgreSQL: the canonical log, its outbox, catalog, leases and projections."""
