"""The public HTTP interface; what it can do, gRPC can do too."""
