"""Encryption of credentials, and where its keys come from."""
