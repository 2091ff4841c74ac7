"""The whole of NoETL with its payloads in a bucket, and copies of them on the worker's disk."""

import asyncio
from pathlib import Path

from noetl_adapters.payload.open_store import open_payload_store
from noetl_testkit.local_stack import local_stack
from noetl_testkit.object_stores import ObjectServer

LARGE = Path(__file__).parent / "fixtures" / "minio_large_result.yaml"


def test_results_are_kept_in_a_bucket_and_equal_ones_once(s3_server: ObjectServer, tmp_path: Path) -> None:
    bucket = f"{s3_server.new_bucket()}/payloads"
    settings = {
        **s3_server.environment,
        "NOETL_PAYLOAD_URL": bucket,
        "NOETL_PAYLOAD_CACHE_DIR": str(tmp_path / "cache"),
    }

    with local_stack(settings) as stack:
        ran = stack.noetl("run", str(LARGE), "-o", "json")
        assert ran.code == 0, ran
        execution_id = ran.document["execution_id"]
        results = stack.noetl("trace", execution_id, "second", "-o", "json").document["results"]
        shown = stack.noetl("result", execution_id, "second", "-o", "json").document["result"]
        verified = stack.noetl("payload", "verify", results[0]["reference"]["ref_id"])

    assert shown == {"text": "the same " * 20000}
    assert verified.code == 0, verified
    assert [result["step"] for result in results] == ["second", "first"]
    (digest,) = {result["reference"]["sha256"] for result in results}
    assert asyncio.run(digests(bucket, s3_server)).count(digest) == 1
    assert any(path.stat().st_size > 100_000 for path in (tmp_path / "cache").rglob("*"))


async def digests(bucket: str, server: ObjectServer) -> list[str]:
    async with open_payload_store(bucket, server.environment) as store:
        return [stored.sha256 async for stored in store.find(tenant_id="default", organization_id="default")]
