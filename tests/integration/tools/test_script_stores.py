"""Scripts in real object stores, opened with what comes with the worker."""

from __future__ import annotations

from dataclasses import replace

from noetl_adapters.arrow.ipc import ArrowTables
from noetl_adapters.payload.buckets import ENDPOINT_VARIABLE, open_bucket
from noetl_core.canonical import JsonObject
from noetl_testkit.memory.payloads import InMemoryPayloadStore
from noetl_testkit.memory.tool_credentials import InMemoryToolCredentials
from noetl_testkit.object_stores import ObjectServer
from noetl_worker.application.tool_call import ToolCall
from noetl_worker.tools.toolbox import ToolboxSettings, build_toolbox


async def test_scripts_run_from_s3_with_the_credential_of_their_step(s3_server: ObjectServer) -> None:
    address = s3_server.new_bucket()
    bucket = open_bucket(address, s3_server.environment)
    try:
        bucket.write("jobs/greet.sh", b'echo "Hello, $1"')
        bucket.write("jobs/double.py", b"result = n * 2")
    finally:
        bucket.close()
    credentials = InMemoryToolCredentials()
    credentials.add("store", "s3", _options(s3_server))
    call = ToolCall(
        tenant_id="default",
        organization_id="default",
        execution_id=1,
        step="s",
        kind="script",
        config={"script": {"uri": f"{address}/jobs/greet.sh"}, "args": ["ada"]},
        auth="store",
        timeout_seconds=60,
    )
    python = replace(call, config={"script": {"uri": f"{address}/jobs/double.py"}}, input={"n": 21})
    missing = replace(call, config={"script": {"uri": f"{address}/jobs/none.py"}})
    settings = ToolboxSettings(slots=1, python_spares=0)

    async with build_toolbox(
        settings,
        payloads=InMemoryPayloadStore(),
        tables=ArrowTables(),
        credentials=credentials,
        variables={},
        plugins=(),
    ) as tools:
        outcomes = [await tools.run(one) for one in (call, python, missing)]

    assert [outcome.error.code if outcome.error else outcome.data for outcome in outcomes] == [
        {"stdout": "Hello, ada\n", "stderr": "", "exit_code": 0},
        42,
        "SCRIPT_NOT_FOUND",
    ]


def _options(server: ObjectServer) -> JsonObject:
    """What fsspec calls options of the storage."""
    variables = server.environment
    return {
        "key": variables["AWS_ACCESS_KEY_ID"],
        "secret": variables["AWS_SECRET_ACCESS_KEY"],
        "endpoint_url": variables[ENDPOINT_VARIABLE],
        "client_kwargs": {"region_name": variables["AWS_REGION"]},
    }
