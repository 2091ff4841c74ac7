"""The whole of NoETL, started once for all tests of this directory."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from noetl_testkit.local_stack import LocalStack, local_stack

# Short, so that what is lost is noticed while a test waits for it.
SETTINGS = {
    "NOETL_COMMAND_LEASE_SECONDS": "3",
    "NOETL_HEARTBEAT_SECONDS": "1",
    "NOETL_HEAD_POLL_SECONDS": "1",
    "NOETL_REHINT_SECONDS": "1",
    "NOETL_REAPER_INTERVAL_SECONDS": "1",
    "NOETL_LOG_LEVEL": "debug",
    # A JVM on a busy machine.
    "NOETL_SPARK_START_SECONDS": "400",
    # No more threads than a test can fill, however many processors there are.
    "NOETL_SPARK_MASTER": "local[3]",
}


@pytest.fixture(scope="session")
def stack() -> Iterator[LocalStack]:
    with local_stack(SETTINGS) as running:
        yield running


@pytest.fixture
def examples() -> Path:
    return Path(__file__).parents[2] / "examples" / "playbooks"
