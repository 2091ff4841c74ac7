"""Finds silent commands and has them abandoned."""
