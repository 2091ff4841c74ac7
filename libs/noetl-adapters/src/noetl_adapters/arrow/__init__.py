"""Tables as Arrow IPC streams."""
