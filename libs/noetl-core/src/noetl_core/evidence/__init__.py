"""Proof that a history is what was written, and that live rows are what it says; nothing here needs a database."""
