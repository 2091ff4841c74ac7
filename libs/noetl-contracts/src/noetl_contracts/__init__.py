"""Generated gRPC code and the typed clients, subjects and mappings around it."""
