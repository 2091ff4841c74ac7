"""How api is asked: gRPC, HTTP, and its own clock."""
