"""Adapters of the core ports: Postgres, NATS JetStream, payload directories."""
