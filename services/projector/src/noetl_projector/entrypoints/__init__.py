"""How work reaches the projector: the event bus, the comparison of stream heads, gRPC queries and the operator."""
