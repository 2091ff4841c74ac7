"""What api shows of the payloads that it has read."""

from noetl_adapters.payload.memory_tier import MemoryTier
from noetl_adapters.payload.tiers import TieredPayloadStore
from noetl_api.telemetry import ApiMetrics
from noetl_servicekit.metrics import MetricSet
from noetl_testkit.compliance.payload_store import put
from noetl_testkit.memory.payloads import InMemoryPayloadStore


async def test_reads_are_shown_by_the_tier_that_answered_them() -> None:
    metrics, store = MetricSet(), InMemoryPayloadStore()
    reports = ApiMetrics(metrics).payloads
    payloads = TieredPayloadStore(store, [MemoryTier(budget_bytes=4_000, reports=reports)], reports)
    ref = await put(store)

    for _ in range(3):
        await payloads.get(ref)

    assert metrics.value("noetl_reference_resolve_seconds_count", tier="store") == 1
    assert metrics.value("noetl_reference_resolve_seconds_count", tier="memory") == 2
    assert metrics.value("noetl_api_payload_reads_total", tier="memory", outcome="hit") == 2
