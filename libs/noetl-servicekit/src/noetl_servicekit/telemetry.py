"""The metrics that every service has, whatever it does."""

from noetl_core.topology import Topology

from noetl_servicekit.instruments import Counter
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


class MethodMetrics:
    """Those of one method, found by their labels once instead of at every call."""

    def __init__(self, metrics: GrpcServerMetrics, method: str) -> None:
        self._all_handled = metrics.handled
        self._method = method
        self._handled: dict[str, Counter] = {}
        self.started = metrics.started.labels(method)
        self.in_flight = metrics.in_flight.labels(method)
        self.handling = metrics.handling.labels(method)

    def handled(self, code: str) -> Counter:
        """Calls that ended with a status."""
        found = self._handled.get(code)
        if found is None:
            found = self._handled[code] = self._all_handled.labels(self._method, code)
        return found


class LoopMetrics:
    """The background loops of a process."""

    def __init__(self, metrics: MetricSet) -> None:
        self.restarts = metrics.counter(
            "noetl_loop_restarts_total", "Times that a loop failed and was started again.", ("loop",)
        )


class PlaceMetrics:
    """Where the process runs; other metrics are joined with it by `instance`, so that they need not repeat it."""

    def __init__(self, metrics: MetricSet) -> None:
        self._info = metrics.gauge(
            "noetl_instance_info",
            "1, with where the instance runs.",
            ("service", "name", "cluster_id", "region", "zone", "node"),
        )

    def tell(self, service: str, instance: str, topology: Topology) -> None:
        """Said once, at the start."""
        place = (topology.cluster, topology.region, topology.zone, topology.node)
        self._info.labels(service, instance, *place).set(1)
