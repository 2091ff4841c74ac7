import pytest
from noetl_servicekit.bus_reports import log_bus_report
from structlog.testing import capture_logs


@pytest.mark.parametrize(
    ("event", "logged", "level"),
    [
        ("nats.connected", "nats.connected", "info"),
        ("nats.disconnected", "nats.disconnected", "warning"),
        ("nats.error", "nats.error", "warning"),
        ("nats.something_new", "nats.error", "warning"),
    ],
)
def test_a_report_becomes_a_declared_log_event(event: str, logged: str, level: str) -> None:
    with capture_logs() as lines:
        log_bus_report(event, "here")

    assert lines == [{"event": logged, "log_level": level, "detail": "here"}]
