"""Verifies many executions: shares of them, wherever a share is worked on."""
