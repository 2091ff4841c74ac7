"""The server's side of gRPC over our own HTTP/2 (ADR 0072)."""
