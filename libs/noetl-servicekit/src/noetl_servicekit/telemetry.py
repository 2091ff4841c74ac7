"""The metrics that every service has, whatever it does."""

from noetl_servicekit.metrics import MetricSet


class GrpcServerMetrics:
    """Calls that this server answers; `method` is the full name, `code` the gRPC status."""

    def __init__(self, metrics: MetricSet) -> None:
        self.started = metrics.counter(
            "noetl_grpc_server_started_total", "Calls that reached this server.", ("method",)
        )
        self.handled = metrics.counter(
            "noetl_grpc_server_handled_total",
            "Calls that this server finished.",
            ("method", "code"),
        )
        self.handling = metrics.histogram(
            "noetl_grpc_server_handling_seconds", "Time from the start of a call to its status.", ("method",)
        )
        self.in_flight = metrics.gauge(
            "noetl_grpc_server_in_flight_calls", "Calls that this server is working on.", ("method",)
        )


class LoopMetrics:
    """The background loops of a process."""

    def __init__(self, metrics: MetricSet) -> None:
        self.restarts = metrics.counter(
            "noetl_loop_restarts_total", "Times that a loop failed and was started again.", ("loop",)
        )
