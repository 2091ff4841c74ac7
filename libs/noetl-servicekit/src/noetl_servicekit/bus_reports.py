"""What a connection to the bus reports, as log events."""

from noetl_servicekit.logging import get_logger

logger = get_logger()


def log_bus_report(event: str, detail: str) -> None:
    """Give it to a connection as its `report`; trouble with the bus is worth a look, never a failure."""
    match event:
        case "nats.connected":
            logger.info("nats.connected", detail=detail)
        case "nats.disconnected":
            logger.warning("nats.disconnected", detail=detail)
        case _:
            logger.warning("nats.error", detail=detail)
