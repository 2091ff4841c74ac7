"""What a stack may leave in the machine's memory when its services are killed."""

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from noetl_adapters.payload.shm_directory import SHM_DIRECTORY, directory_name, remove_if_unused
from noetl_core.errors import InvalidInput

from noetl_cli.dev.home import StackHome
from noetl_cli.dev.stack import SETTINGS_FILE, payload_url, read_settings


def remove_copies(home: StackHome, environment: Mapping[str, str] = os.environ) -> bool:
    """Remove copies of payloads that nobody reads any more; services that stop in good order do it themselves."""
    settings = dict(environment)
    with suppress(InvalidInput):  # of a stack that could not start with it
        settings |= read_settings(home.root / SETTINGS_FILE)
    url = settings.get("NOETL_PAYLOAD_URL") or payload_url(home)
    directory = Path(settings.get("NOETL_PAYLOAD_SHM_DIR") or SHM_DIRECTORY)
    return remove_if_unused(directory / directory_name(url, settings))
