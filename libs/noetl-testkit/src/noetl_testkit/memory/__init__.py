"""In-memory twins of the ports: as strict as the real adapters, and instant."""
