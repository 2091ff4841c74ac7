"""What a worker counts."""

from collections.abc import Callable

from noetl_core.ports.spark import SparkProgress, SparkWork
from noetl_servicekit.logging import get_logger
from noetl_servicekit.metrics import RESOLVE_BUCKETS, MetricSet

logger = get_logger()


class WorkerMetrics:
    """Claims, commands and results of one worker."""

    def __init__(self, metrics: MetricSet) -> None:
        self.claims_granted = metrics.counter("noetl_worker_claims_granted_total", "Commands that were granted.")
        self.claims_refused = metrics.counter(
            "noetl_worker_claims_refused_total", "Claims that came too late or for nothing.", ("reason",)
        )
        self.commands_completed = metrics.counter(
            "noetl_worker_commands_completed_total", "Commands whose result was accepted.", ("status",)
        )
        self.commands_parked = metrics.counter(
            "noetl_worker_commands_parked_total", "Commands that were left to wait for a child, without a worker."
        )
        self.commands_stopped = metrics.counter(
            "noetl_worker_commands_stopped_total", "Commands stopped because they no longer counted."
        )
        self.results_discarded = metrics.counter(
            "noetl_worker_results_discarded_total", "Results that did not count any more."
        )
        self.heartbeat_failures = metrics.counter(
            "noetl_worker_heartbeat_failures_total", "Heartbeats that no planner took."
        )
        self.chunks_told = metrics.counter(
            "noetl_worker_chunks_told_total", "Chunks of streaming calls that were stored and told."
        )
        self.resting_commands = metrics.gauge(
            "noetl_worker_resting_commands", "Commands that wait until others have taken their chunks."
        )
        self.command_seconds = metrics.histogram(
            "noetl_worker_command_seconds", "Time from the start of a command to its stored result."
        )
        self.busy_slots = metrics.gauge("noetl_worker_busy_slots", "Commands that run at the moment.")
        self.keychain = metrics.counter(
            "noetl_worker_keychain_total", "Entries of the keychain that calls have asked for.", ("kind", "outcome")
        )
        self.payloads = PayloadTierMetrics(metrics)
        self.spark = SparkTelemetry(metrics)


class PayloadTierMetrics:
    """What the places are good for in which payloads are looked for."""

    def __init__(self, metrics: MetricSet) -> None:
        self._reads = metrics.counter(
            "noetl_worker_payload_reads_total", "Times that a tier was asked for a payload.", ("tier", "outcome")
        )
        self._refused = metrics.counter(
            "noetl_worker_payload_copies_refused_total",
            "Copies of payloads that a tier did not take.",
            ("tier", "reason"),
        )
        for exhausted in ("full", "no_room"):  # from 0 on, or an alert would not see the first one as an increase
            self._refused.labels("shared_memory", exhausted)
        self._resolve_seconds = metrics.histogram(
            "noetl_reference_resolve_seconds",
            "Time from asking for a payload to its bytes, by the tier that had them.",
            ("tier",),
            buckets=RESOLVE_BUCKETS,
        )
        self._bytes = metrics.gauge("noetl_worker_payload_tier_bytes", "Payloads that a tier holds.", ("tier",))

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
        """A tier has so many bytes now."""
        self._bytes.labels(tier).set(size)


class SparkTelemetry:
    """How the Spark session is, and how far its calls are."""

    def __init__(self, metrics: MetricSet) -> None:
        self._sessions = metrics.counter(
            "noetl_worker_spark_sessions_total", "Times that the Spark session has come into a state.", ("state",)
        )
        self._is_up = metrics.gauge("noetl_worker_spark_session_up", "Whether there is a Spark session to call.")
        self._calls = metrics.counter("noetl_worker_spark_calls_total", "Calls of the spark tool.", ("outcome",))
        self._running = metrics.gauge("noetl_worker_spark_calls_running", "Calls that run in the session.")
        self._slots = metrics.gauge("noetl_worker_spark_slots", "Slots of stages that are on Spark, or about to be.")
        self._frames = metrics.counter("noetl_worker_spark_frames_total", "Frames that have ended in tasks of Spark.")
        self.on_progress: Callable[[SparkWork, SparkProgress], None] = lambda call, progress: None
        """Who else wants to know how far calls are."""

    def session(self, state: str) -> None:
        """starting, ready, stopped, lost or failed."""
        self._sessions.labels(state).inc()
        self._is_up.set(1 if state == "ready" else 0)
        if state in {"lost", "failed"}:
            logger.warning("spark.session_lost", state=state)
        else:
            logger.info("spark.session", state=state)

    def began(self) -> None:
        """A call has been given to the session."""
        self._running.inc()

    def ended(self, outcome: str) -> None:
        """It has ended: ok, error or cancelled."""
        self._running.dec()
        self._calls.labels(outcome).inc()

    def progress(self, call: SparkWork, progress: SparkProgress) -> None:
        """Spark's own count of stages and tasks."""
        self.on_progress(call, progress)
        logger.info(
            "spark.progress",
            execution_id=call.execution_id,
            step=call.step,
            stages=f"{progress.stages_done}/{progress.stages}",
            tasks=f"{progress.tasks_done}/{progress.tasks}",
        )

    def slots_held(self, count: int) -> None:
        """Slots of stages have come or gone."""
        self._slots.set(count)

    def frames_ran(self, count: int) -> None:
        """A job has ended, in which so many frames did."""
        self._frames.inc(count)

    def said(self, line: str) -> None:
        """What Spark, or code that runs in it, wrote to stderr."""
        if line:
            logger.debug("spark.said", line=line)
