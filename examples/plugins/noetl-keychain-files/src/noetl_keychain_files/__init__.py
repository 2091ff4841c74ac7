"""Secrets that are mounted as files."""
