"""How work reaches the worker: hints from the bus, and cancellations."""
