"""What the reaper counts."""

from __future__ import annotations

from noetl_servicekit.metrics import MetricSet


class ReaperMetrics:
    """Silent commands and passed deadlines: how many there are, and what became of them."""

    def __init__(self, metrics: MetricSet) -> None:
        self.sweeps = metrics.counter("noetl_reaper_sweeps_total", "Looks at the list of silent commands.")
        self.sweep_seconds = metrics.histogram("noetl_reaper_sweep_seconds", "Time that a sweep took.")
        self.silent = metrics.gauge("noetl_reaper_silent_commands", "Silent commands that the last sweep found.")
        self.abandoned = metrics.counter(
            "noetl_reaper_abandoned_total",
            "Attempts given up; the command was issued again, or its attempts are exhausted.",
            ("outcome",),
        )
        self.refused = metrics.counter(
            "noetl_reaper_refused_total",
            "Attempts and deadlines that were left alone, because the log knew better; by the error's code.",
            ("code",),
        )
        self.failures = metrics.counter(
            "noetl_reaper_failures_total",
            "Attempts and deadlines that could not be dealt with; the next sweep tries again.",
            ("code",),
        )
        self.late = metrics.gauge(
            "noetl_reaper_late_executions", "Executions with a passed deadline that the last sweep found."
        )
        self.cascades = metrics.counter(
            "noetl_reaper_cascades_total", "Families of cancelled executions that were ended because nobody had."
        )
        self.deadlines_passed = metrics.counter(
            "noetl_reaper_deadlines_passed_total", "Deadlines whose passing was recorded."
        )
        self.stalled = metrics.gauge(
            "noetl_reaper_stalled_executions",
            "Executions that can never go on by themselves, by what they wait for.",
            ("reason",),
        )
