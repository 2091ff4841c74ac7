"""Drains the outbox to JetStream, at least once, in order per execution."""
