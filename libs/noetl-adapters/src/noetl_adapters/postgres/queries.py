"""SQL by name: each .sql file beside this module holds queries under `-- name: …` lines."""

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

_NAME = re.compile(r"^-- name: *([a-z_]+)\b.*$", re.MULTILINE)


@cache
def load_queries(file_name: str) -> Mapping[str, str]:
    """The queries of one file, by name."""
    text = (files(__package__) / "sql" / file_name).read_text(encoding="utf-8")
    parts = _NAME.split(text)
    names, bodies = parts[1::2], parts[2::2]
    if len(set(names)) != len(names):
        raise ValueError(f"{file_name} names a query twice")
    return {name: body.strip() for name, body in zip(names, bodies, strict=True)}
