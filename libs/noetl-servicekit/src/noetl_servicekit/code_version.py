"""Which code folds here: states that other code has made are not gone on with."""

import hashlib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from importlib.resources.abc import Traversable


@cache
def code_version() -> str:
    """The release of the core and a digest of its sources: a change between two releases is another version too."""
    digest = hashlib.sha256()
    for name, content in sorted(_sources(files("noetl_core"), "")):
        digest.update(f"{name}\0{len(content)}\0".encode())
        digest.update(content)
    return f"{version('noetl-core')}+{digest.hexdigest()[:16]}"


def _sources(folder: Traversable, path: str) -> Iterator[tuple[str, bytes]]:
    for one in folder.iterdir():
        if one.is_dir():
            if one.name != "__pycache__":
                yield from _sources(one, f"{path}{one.name}/")
        elif one.name.endswith(".py"):
            yield f"{path}{one.name}", one.read_bytes()
