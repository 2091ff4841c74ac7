"""What every service process is made of: settings, logs, telemetry, health, gRPC server, lifecycle."""
