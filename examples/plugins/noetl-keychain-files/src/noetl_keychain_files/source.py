"""The provider `files`: each field of `map` is the content of a file of the organization that asks."""

import asyncio
from pathlib import Path

from noetl_worker.tools.keychain_plugins import KeychainEnvironment, Secret, SecretRequest, Unresolved


class FilesSource:
    """Its own factory: a class is called with the environment, and gives the source."""

    def __init__(self, environment: KeychainEnvironment) -> None:
        self._root = Path(environment.settings["root"]).resolve()  # NOETL_KEYCHAIN_FILES_ROOT

    async def resolve(self, request: SecretRequest) -> Secret:
        """Read anew for each call: whoever mounts the files may replace them."""
        wanted = request.config.get("map")
        if not isinstance(wanted, dict) or not wanted:
            raise Unresolved("`map` names no files")
        folder = self._root / request.tenant_id / request.organization_id
        return Secret(
            fields={field: await asyncio.to_thread(_read, folder, str(place)) for field, place in wanted.items()}
        )


def _read(folder: Path, place: str) -> str:
    file = (folder / place).resolve()
    if not file.is_relative_to(folder):
        raise Unresolved(f"{place!r} is not a file of this organization")
    try:
        return file.read_text("utf-8").strip()
    except OSError as exc:
        raise Unresolved(f"there is no file {place!r}") from exc
