"""Starts a projector: noetl-projector, or python -m noetl_projector."""

import sys

from noetl_servicekit.lifecycle import run_service

from noetl_projector.bootstrap import start


def main() -> None:
    """Run until a signal comes."""
    sys.exit(run_service("projector", start, description="Turns events into rows that can be queried."))


if __name__ == "__main__":
    main()
