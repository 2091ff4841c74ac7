"""Payload stores."""
