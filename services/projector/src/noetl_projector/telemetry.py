"""What the projector counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from noetl_servicekit import instruments
from noetl_servicekit.metrics import LAG_BUCKETS, SIZE_BUCKETS, MetricSet

_SHARD: Final = ("shard_id",)
NO_SHARD: Final = ""
"""Of messages that do not say where they belong."""


def count_by_shard(counter: instruments.Counter, shards: Iterable[int | str]) -> None:
    """Count each under its shard."""
    for shard, number in Counter(shards).items():
        counter.labels(str(shard)).inc(number)


class ProjectorMetrics:
    """Events that came in, rows that went out, and everything that did not go the straight way."""

    def __init__(self, metrics: MetricSet) -> None:
        self._of_messages(metrics)
        self._of_projections(metrics)
        self._of_lag(metrics)

    def forget_shards(self, shards: Iterable[int]) -> None:
        """How far they are is for their next owner to say; the last that this one saw would be shown for ever."""
        for shard in shards:
            for gauge in (self.shard_lag, self.shard_barrier_age, self.checkpoint_at):
                gauge.forget(shard)

    def _of_messages(self, metrics: MetricSet) -> None:
        self.events_received = metrics.counter("noetl_projector_events_received_total", "Events taken from the bus.")
        self.events_unowned = metrics.counter(
            "noetl_projector_events_unowned_total", "Events of shards that another replica owns.", _SHARD
        )
        self.events_unshardable = metrics.counter(
            "noetl_projector_events_unshardable_total", "Messages whose subject names no execution and shard."
        )
        self.foreign_messages = metrics.counter(
            "noetl_projector_foreign_messages_total",
            "Messages dropped because they are of a log that a restored database lost.",
        )
        self.decode_errors = metrics.counter(
            "noetl_projector_decode_errors_total", "Messages that are not the event that they claim to be.", _SHARD
        )
        self.acknowledged = metrics.counter(
            "noetl_projector_acknowledged_notifications_total",
            "Messages acknowledged after their rows were committed.",
            _SHARD,
        )
        self.terminated = metrics.counter(
            "noetl_projector_terminated_notifications_total",
            "Messages that are never to come again, for nobody can read them.",
            _SHARD,
        )
        self.redelivery_requests = metrics.counter(
            "noetl_projector_redelivery_requests_total", "Messages given back, to come again.", _SHARD
        )
        self.delayed_redelivery_requests = metrics.counter(
            "noetl_projector_delayed_redelivery_requests_total",
            "Messages given back because the database was away.",
            _SHARD,
        )
        self.last_action_at = metrics.gauge(
            "noetl_projector_last_action_timestamp_seconds",
            "When messages were last acknowledged, given back or terminated.",
            ("action",),
        )
        self.shards = metrics.gauge(
            "noetl_projector_shard_info",
            "1 for each shard of this process, its place among them, and where its events come from.",
            ("shard_id", "shard_index", "shard_count", "consumer", "stream", "subject"),
        )

    def _of_projections(self, metrics: MetricSet) -> None:
        self.events_projected = metrics.counter("noetl_projector_events_projected_total", "Events folded into rows.")
        self.events_recovered = metrics.counter(
            "noetl_projector_events_recovered_total", "Events read from the log because the bus had not delivered them."
        )
        self.events_stale = metrics.counter(
            "noetl_projector_events_stale_total", "Events that came again, or late, and were in the rows already."
        )
        self.rows_written = metrics.counter("noetl_projector_rows_written_total", "Rows of executions written.")
        self.remade = metrics.counter(
            "noetl_projector_states_remade_total",
            "Executions made again from the log, because what was stored of them was folded by other rules.",
            ("reason",),
        )
        self.to_remake = metrics.gauge(
            "noetl_projector_states_to_remake", "Executions that wait to be made again from the log."
        )
        self.stale_records = metrics.counter(
            "noetl_projector_projection_stale_records_total",
            "Rows not written because newer ones were there, by surface.",
            ("group", *_SHARD),
        )
        self.fenced = metrics.counter(
            "noetl_projector_fenced_total", "Rows not written because a later owner of the shard had written them."
        )
        self.projection_errors = metrics.counter(
            "noetl_projector_projection_errors_total", "Times that an execution could not be folded or stored.", _SHARD
        )
        self.errors = metrics.counter(
            "noetl_projector_errors_total", "Everything that went wrong: undecodable, unfoldable, unavailable."
        )
        self.quarantined = metrics.gauge(
            "noetl_projector_quarantined_executions", "Executions set aside after repeated failures."
        )
        self.cached = metrics.gauge("noetl_projector_cached_executions", "Executions whose state is in memory.")
        self.batch_events = metrics.histogram("noetl_projector_batch_events", "Events a batch.", buckets=SIZE_BUCKETS)
        self.batch_seconds = metrics.histogram(
            "noetl_projector_batch_seconds", "Time from the start of a batch to the commit of its rows."
        )

    def _of_lag(self, metrics: MetricSet) -> None:
        self.lag = metrics.histogram(
            "noetl_projection_lag_seconds",
            "Time from the append of the oldest event of a row's update to its commit, by the database's clock.",
            buckets=LAG_BUCKETS,
        )
        self.shard_lag = metrics.gauge(
            "noetl_projection_shard_lag_seconds", "The same for the last update of each shard.", _SHARD
        )
        self.last_batch_at = metrics.gauge(
            "noetl_projector_last_batch_timestamp_seconds", "When rows were last written, by the database's clock."
        )
        self.last_batch_events = metrics.gauge(
            "noetl_projector_last_batch_events", "Events of the last batch that was written."
        )
        self.checkpoint_at = metrics.gauge(
            "noetl_projector_checkpoint_timestamp_seconds",
            "Time up to which every head of the shard has been compared with its row.",
            _SHARD,
        )
        self.barriers = metrics.counter(
            "noetl_projector_barriers_total", "Barriers written: an execution's rows are committed up to a version."
        )
        self.barrier_age = metrics.histogram(
            "noetl_checkpoint_age_seconds",
            "Time from the append of the oldest event that a barrier is the first to cover to that barrier.",
            buckets=LAG_BUCKETS,
        )
        self.shard_barrier_age = metrics.gauge(
            "noetl_checkpoint_shard_age_seconds",
            "The same for the oldest of the barriers of each shard that were last written together.",
            _SHARD,
        )
        self.checkpoints_told = metrics.counter(
            "noetl_projector_checkpoints_told_total", "Barriers told in the logs of their executions."
        )
        self.snapshots = metrics.counter("noetl_projector_snapshots_total", "Snapshots of long histories made.")
        self.bus_away = metrics.gauge(
            "noetl_projector_bus_away", "1 while the bus does not answer, and heads are polled."
        )
