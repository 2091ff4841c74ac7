"""The worker's use cases."""
