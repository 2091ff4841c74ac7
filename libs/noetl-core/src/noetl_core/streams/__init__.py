"""Streams: calls that deliver their rows in chunks while they run, and the steps that take them."""
