"""Collecting payloads that no event reaches: marked, withdrawn after a grace period, swept after another one."""
