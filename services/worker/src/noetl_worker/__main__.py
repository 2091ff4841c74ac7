"""Starts a worker: noetl-worker, or python -m noetl_worker."""

import sys

from noetl_servicekit.lifecycle import run_service

from noetl_worker.bootstrap.process import start


def main() -> None:
    """Run until a signal comes."""
    sys.exit(run_service("worker", start, description="Claims commands, runs their tools and stores results."))


if __name__ == "__main__":
    main()
