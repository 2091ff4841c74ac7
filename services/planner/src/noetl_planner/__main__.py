"""Starts a planner: noetl-planner, or python -m noetl_planner."""

import sys

from noetl_servicekit.lifecycle import run_service

from noetl_planner.bootstrap import start


def main() -> None:
    """Run until a signal comes."""
    sys.exit(run_service("planner", start, description="Folds events, evaluates playbooks and grants commands."))


if __name__ == "__main__":
    main()
