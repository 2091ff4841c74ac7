"""What the planner counts."""

from collections.abc import Iterable
from typing import Final

from noetl_servicekit.metrics import MetricSet

LEASE_BUCKETS: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0)
"""From frames of one quick row to those that outlive the default lease."""


class PlannerMetrics:
    """Turns, races and executions of one planner."""

    def __init__(self, metrics: MetricSet) -> None:
        self.turns = metrics.counter("noetl_planner_turns_total", "Turns that ended in an append.")
        self.events_appended = metrics.counter("noetl_planner_events_appended_total", "Events appended by turns.")
        self.handed_over = metrics.counter(
            "noetl_planner_handed_over_total",
            "Commands claimed for a worker that waited, in the append that issued them.",
        )
        self.evaluations_issued = metrics.counter(
            "noetl_planner_evaluations_issued_total",
            "Internal commands issued because control expressions need more than events tell.",
        )
        self.events_read = metrics.counter(
            "noetl_planner_events_read_total", "Events read from the log because the bus had not delivered them."
        )
        self.snapshots_written = metrics.counter(
            "noetl_planner_snapshots_written_total",
            "Routing snapshots that were made, by what became of them: written, outdated, too_large, fenced or failed.",
            ("outcome",),
        )
        self.snapshots_used = metrics.counter(
            "noetl_planner_snapshots_used_total", "Executions taken over from a routing snapshot."
        )
        self.snapshots_refused = metrics.counter(
            "noetl_planner_snapshots_refused_total",
            "Routing snapshots that could not be proven, so that the log was read from its first event.",
            ("reason",),
        )
        self.events_spared = metrics.counter(
            "noetl_planner_events_spared_total", "Events that need not be read because a routing snapshot has them."
        )
        self.recovery_events = metrics.counter(
            "noetl_planner_recovery_events_total", "Events read of executions that were not known here before."
        )
        self.events_received = metrics.counter("noetl_planner_events_received_total", "Events taken from the bus.")
        self.decode_errors = metrics.counter(
            "noetl_planner_decode_errors_total", "Messages from the bus that are not events."
        )
        self.foreign_messages = metrics.counter(
            "noetl_planner_foreign_messages_total",
            "Messages dropped because they are of a log that a restored database lost.",
        )
        self.unfounded_notices = metrics.counter(
            "noetl_planner_unfounded_notices_total",
            "Starts that were told ahead of their commit and not found in the log, not yet or not at all.",
        )
        self.lost_races = metrics.counter(
            "noetl_planner_lost_races_total", "Turns repeated because somebody else appended first."
        )
        self.fenced = metrics.counter(
            "noetl_planner_fenced_total", "Turns refused because the shard has another owner."
        )
        self.quarantined = metrics.counter(
            "noetl_planner_quarantined_total", "Executions set aside after repeated failures."
        )
        self.open_executions = metrics.gauge("noetl_planner_open_executions", "Executions with an actor.")
        self.backlog = metrics.gauge(
            "noetl_planner_backlog_commands",
            "Commands and frames that wait for a worker of the pool, and those that its workers run.",
            ("pool", "state"),
        )
        self.frame_backlog = metrics.gauge(
            "noetl_frame_backlog",
            "Frames of open stages that have not begun, and those that workers run.",
            ("stage_kind", "status"),
        )
        self.frame_backlog_detail = metrics.gauge(
            "noetl_frame_backlog_detail",
            "Frames of open stages by whose they are; those with the most, if they are many.",
            ("tenant_id", "organization_id", "stage_kind", "status"),
        )
        self._frame_leases = metrics.histogram(
            "noetl_frame_lease_seconds",
            "How long workers had frames, by how that ended.",
            ("stage_kind", "status"),
            buckets=LEASE_BUCKETS,
        )
        self.hints_repeated = metrics.counter(
            "noetl_planner_hints_repeated_total", "Wake-ups sent again for work that nobody claimed."
        )

    def leases_ended(self, ended: Iterable[tuple[str, str, float]]) -> None:
        """Attempts at frames are over: kind of the stage, how, and after how many seconds."""
        for kind, status, seconds in ended:
            self._frame_leases.labels(stage_kind=kind, status=status).observe(seconds)
