"""What api measures: the names are declared here and in telemetry/metrics.yaml, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from noetl_servicekit.metrics import RESOLVE_BUCKETS, SIZE_BUCKETS, MetricSet

EVENT_BYTES_BUCKETS: Final = (128, 256, 512, 768, 1_024, 1_536, 2_048, 4_096, 8_192, 16_384, 65_536)


class AppendMetrics:
    """The write path."""

    def __init__(self, metrics: MetricSet) -> None:
        self.seconds = metrics.histogram(
            "noetl_api_append_seconds", "Time from the arrival of a request to its commit or refusal."
        )
        self.commit_seconds = metrics.histogram(
            "noetl_api_commit_seconds", "Time that one transaction of the log took."
        )
        self.batch_events = metrics.histogram(
            "noetl_api_commit_batch_events", "Drafts in one transaction of the log.", buckets=SIZE_BUCKETS
        )
        self.events = metrics.counter("noetl_api_events_appended_total", "Events that were committed.")
        self.duplicates = metrics.counter(
            "noetl_api_events_duplicate_total", "Drafts that were answered with an event that was there already."
        )
        self.refused = metrics.counter(
            "noetl_api_appends_refused_total", "Append requests that were refused, by the code of the error.", ("code",)
        )
        self.queued_events = metrics.gauge("noetl_api_append_queue_events", "Drafts that wait for their transaction.")
        self.event_bytes = metrics.histogram(
            "noetl_api_event_bytes", "Size of the largest event of an append.", buckets=EVENT_BYTES_BUCKETS
        )
        self.result_bytes = metrics.histogram(
            "noetl_event_result_bytes",
            "Size of the result in each committed event that has one.",
            buckets=EVENT_BYTES_BUCKETS,
        )


class CredentialMetrics:
    """Stored credentials."""

    def __init__(self, metrics: MetricSet) -> None:
        self.opened = metrics.counter(
            "noetl_api_credentials_opened_total",
            "Credentials whose data were given out, to people (reveal) or to calls of tools (resolve).",
            ("purpose",),
        )
        self.rotated = metrics.counter(
            "noetl_api_credentials_rotated_total", "Credentials that were encrypted anew with the current key."
        )


class PayloadMetrics:
    """Where payloads were found that api has shown."""

    def __init__(self, metrics: MetricSet) -> None:
        self._reads = metrics.counter(
            "noetl_api_payload_reads_total", "Times that a tier was asked for a payload.", ("tier", "outcome")
        )
        self._refused = metrics.counter(
            "noetl_api_payload_copies_refused_total",
            "Copies of payloads that a tier did not take.",
            ("tier", "reason"),
        )
        self._resolve_seconds = metrics.histogram(
            "noetl_reference_resolve_seconds",
            "Time from asking for a payload to its bytes, by the tier that had them.",
            ("tier",),
            buckets=RESOLVE_BUCKETS,
        )

    def read(self, tier: str, outcome: str) -> None:
        """A tier was asked: hit, or which kind of miss."""
        self._reads.labels(tier, outcome).inc()

    def resolved(self, tier: str, seconds: float) -> None:
        """Somebody who asked has the bytes, from this tier or the store, after so long."""
        self._resolve_seconds.labels(tier).observe(seconds)

    def refused(self, tier: str, reason: str) -> None:
        """A tier did not take a copy."""
        self._refused.labels(tier, reason).inc()

    def holds(self, tier: str, size: int) -> None:
        """Workers tell it: what a node holds is the same for all of its processes."""


class CollectionMetrics:
    """Payloads that no event reaches."""

    def __init__(self, metrics: MetricSet) -> None:
        self.runs = metrics.counter(
            "noetl_api_payload_collections_total", "Runs of the collection of payloads, dry or applied.", ("mode",)
        )
        self.payloads = metrics.counter(
            "noetl_api_payloads_collected_total",
            "Payloads that were marked, withdrawn, swept or restored because of what events reach.",
            ("step",),
        )
        self.swept_bytes = metrics.counter(
            "noetl_api_payload_swept_bytes_total", "Bytes of payloads that were deleted."
        )
        self.unreferenced_bytes = metrics.gauge(
            "noetl_api_payload_unreferenced_bytes", "Bytes in the store that the last run found no event to reach."
        )


class ReplayMetrics:
    """Histories that were folded to answer a question."""

    def __init__(self, metrics: MetricSet) -> None:
        self.replays = metrics.counter(
            "noetl_api_replays_total", "Replays of histories, by where they began: start or snapshot.", ("began_at",)
        )
        self.events = metrics.counter("noetl_api_replayed_events_total", "Events that replays have folded.")
        self.refused_snapshots = metrics.counter(
            "noetl_api_snapshots_refused_total",
            "Snapshots that replays did not begin with: corrupt in themselves, or unfit for the log.",
            ("reason",),
        )


class ApiMetrics:
    """Everything that api measures besides what every service does."""

    def __init__(self, metrics: MetricSet) -> None:
        self.append = AppendMetrics(metrics)
        self.credentials = CredentialMetrics(metrics)
        self.payloads = PayloadMetrics(metrics)
        self.collection = CollectionMetrics(metrics)
        self.replay = ReplayMetrics(metrics)
        self.http_handled = metrics.counter(
            "noetl_api_http_handled_total", "HTTP requests that were answered.", ("method", "route", "status")
        )
        self.http_seconds = metrics.histogram(
            "noetl_api_http_handling_seconds", "Time from an HTTP request to its answer.", ("method", "route")
        )
        self.watchers = metrics.gauge("noetl_api_watchers", "Followers of executions.")
        self.executions_started = metrics.counter("noetl_api_executions_started_total", "Executions that were started.")
        self.open_executions = metrics.gauge(
            "noetl_api_open_executions", "Executions that have not ended, counted up to the limit."
        )
        self.starts_refused = metrics.counter(
            "noetl_api_starts_refused_total", "Starts that were sent away because too many executions are open."
        )
        self.partitions_made = metrics.counter(
            "noetl_api_partitions_made_total", "Partitions of the log that were made."
        )
        self._pool_used = metrics.gauge(
            "noetl_api_postgres_pool_used_ratio",
            "Share of the connections of a pool that callers hold.",
            ("pool",),
        )
        self.query_source = metrics.counter(
            "noetl_api_execution_queries_total",
            "Queries for one execution, by what they were answered from: projection, memory or log.",
            ("source",),
        )

    def watch_pool(self, pool: str, used_ratio: Callable[[], float]) -> None:
        """Show how much of a pool is in use, as it is when somebody looks."""
        self._pool_used.labels(pool=pool).set_function(used_ratio)

    def count_watchers(self, count: Callable[[], float]) -> None:
        """Asked when somebody scrapes."""
        self.watchers.set_function(count)
