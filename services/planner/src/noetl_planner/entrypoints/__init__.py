"""How work reaches the planner: gRPC calls, the event bus, and the sweep over stream heads."""
