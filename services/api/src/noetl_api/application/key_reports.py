"""What a file of credential keys reports, as log events."""

from noetl_servicekit.logging import get_logger

logger = get_logger()


def log_key_report(event: str, detail: str) -> None:
    """Give it to a source of keys as its `report`; a file that went bad leaves the keys that were there."""
    match event:
        case "credential_keys.reloaded":
            logger.info("credential_keys.reloaded", detail=detail)
        case _:
            logger.error("credential_keys.reload_failed", detail=detail)
