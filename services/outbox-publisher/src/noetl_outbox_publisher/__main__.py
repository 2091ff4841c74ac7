"""Starts a publisher: noetl-outbox-publisher, or python -m noetl_outbox_publisher."""

import sys

from noetl_servicekit.lifecycle import run_service

from noetl_outbox_publisher.bootstrap import add_arguments, start


def main() -> None:
    """Run until a signal comes, or with --once until the outbox is empty."""
    sys.exit(
        run_service(
            "outbox-publisher",
            start,
            description="Drains the outbox to JetStream, at least once, in order per execution.",
            add_arguments=add_arguments,
        )
    )


if __name__ == "__main__":
    main()
