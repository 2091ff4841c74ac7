"""Appends canonical events; serves HTTP and gRPC."""
