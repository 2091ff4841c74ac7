"""Which adapter stands behind which port: of the worker, and of its slots on executors."""
