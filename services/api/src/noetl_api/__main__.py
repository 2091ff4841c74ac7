"""Starts an api replica: noetl-api, or python -m noetl_api."""

import sys

from noetl_servicekit.lifecycle import run_service

from noetl_api.bootstrap import start


def main() -> None:
    """Run until a signal comes."""
    sys.exit(run_service("api", start, description="Appends canonical events; serves HTTP and gRPC."))


if __name__ == "__main__":
    main()
