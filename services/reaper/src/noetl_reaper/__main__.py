"""Starts a reaper: noetl-reaper, or python -m noetl_reaper."""

import sys

from noetl_servicekit.lifecycle import run_service

from noetl_reaper.bootstrap import start


def main() -> None:
    """Run until a signal comes."""
    sys.exit(run_service("reaper", start, description="Finds commands that nobody hears of and has them abandoned."))


if __name__ == "__main__":
    main()
