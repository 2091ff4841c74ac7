"""What every service process is made of: settings, logs, telemetry, health, gRPC server, lifecycle."""

import os

# Here, since gRPC reads it when it is imported. The threads of its event engine pass every message on once more; on two
# processors a call is a fifth cheaper without them.
os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_client,-event_engine_listener")
