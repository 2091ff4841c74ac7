"""gRPC over HTTP/2, spoken by ourselves: a call is a write and a read on the loop that waits for it (ADR 0072)."""
