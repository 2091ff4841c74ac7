"""The files of a bundle as its index names them, and as they are."""

from __future__ import annotations

from noetl_core.evidence.bundle import INDEX_SHAPE, Artifact
from noetl_core.evidence.strict import problems

from noetl_cli.verify.check_bundle import CheckedBundle


def file_rows(checked: CheckedBundle) -> list[tuple[str, ...]]:
    """Role, path, size, digest, and whether that is what is there; files that no index names come last."""
    listed: list[Artifact] = []
    if not problems(checked.index, INDEX_SHAPE, "index"):
        listed = [Artifact(**one) for one in checked.index["artifacts"]]
    there = {one.path: one for one in checked.files}
    rows = [(one.role, one.path, str(one.size), one.sha256, _as_found(one, there.get(one.path))) for one in listed]
    unlisted = sorted(there.keys() - {one.path for one in listed})
    return [*rows, *(("", path, str(there[path].size), "", "IN NO INDEX") for path in unlisted)]


def _as_found(wanted: Artifact, actual: Artifact | None) -> str:
    if actual is None:
        return "MISSING"
    if (actual.size, actual.sha256) == (wanted.size, wanted.sha256):
        return "as the index says"
    return f"CHANGED: {actual.size} bytes, {actual.sha256}"
