"""A service starts often, where it is scaled and where tests kill it: it loads what it uses."""

import subprocess
import sys

import pytest

HEAVY = {"aiohttp", "fastapi", "pyspark", "rich", "unittest.mock"}
"""What costs a tenth of a second and more, and some library would load if it is installed."""
USED = {"api": {"fastapi"}, "worker": {"aiohttp"}}


@pytest.mark.parametrize("service", ["api", "outbox_publisher", "planner", "projector", "reaper", "worker"])
def test_a_service_loads_nothing_heavy_that_it_does_not_use(service: str) -> None:
    module = f"noetl_{service}"
    code = f"import sys, {module}.__main__, {module}.bootstrap; print(*sorted({HEAVY!r} & set(sys.modules)))"
    loaded = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True).stdout
    assert set(loaded.split()) == USED.get(service, set())


def test_the_nats_tool_still_has_what_web_sockets_need() -> None:
    code = (
        "import noetl_adapters.nats.connection, noetl_worker.tools.nats_connections, nats.aio.transport as transport;"
        "print(transport.aiohttp.__name__)"
    )
    told = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True).stdout
    assert told.strip() == "aiohttp"
