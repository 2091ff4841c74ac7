"""A client of another language: `buf curl` speaks Go's HTTP/2, as Kubernetes' probes do."""

import asyncio
import json
import sys
from pathlib import Path

from noetl_servicekit.env import Address
from noetl_servicekit.grpc_server import serve_grpc
from noetl_servicekit.health import Health
from noetl_servicekit.metrics import MetricSet
from noetl_servicekit.telemetry import GrpcServerMetrics
from noetl_servicekit.tokens import Tokens

BUF = Path(sys.executable).with_name("buf")
HEALTH = "/grpc.health.v1.Health/Check"


async def curl(address: Address, path: str, *options: str) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        *(str(BUF), "curl", "--protocol", "grpc", "--http2-prior-knowledge", *options, f"http://{address}{path}"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(60):
        out, err = await process.communicate()
    return process.returncode or 0, out.decode(), err.decode()


async def test_methods_reflection_and_typed_errors_reach_it(tmp_path: Path) -> None:
    tokens, health = tmp_path / "tokens.json", Health()
    tokens.write_text('{"tokens": []}')
    health.condition("postgres").up()
    async with serve_grpc(
        Address(host="127.0.0.1", port=0),
        register=lambda server: None,
        service_names=["noetl.test.v1.Desk"],
        tokens=Tokens(tokens),
        metrics=GrpcServerMetrics(MetricSet()),
        health=health,
    ) as address:
        # The shape of messages is asked of the server, which is a stream of questions.
        exit_code, out, err = await curl(address, HEALTH, "-d", "{}")
        assert exit_code == 0, err
        assert json.loads(out) == {"status": "SERVING"}

        exit_code, out, err = await curl(address, "", "--list-services")
        assert exit_code == 0, err
        assert "noetl.test.v1.Desk" in out.split()

        exit_code, _, err = await curl(address, HEALTH, "-d", '{"service": "nothing"}')
        assert exit_code != 0
        refused = json.loads(err)
        assert (refused["code"], refused["message"]) == ("not_found", "service 'nothing' does not exist")
        assert refused["details"][0]["type"] == "google.rpc.ErrorInfo"
