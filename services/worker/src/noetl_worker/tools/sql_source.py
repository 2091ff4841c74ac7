"""Where the SQL of a call stands in its configuration, split into statements."""

from __future__ import annotations

import base64
import binascii

from noetl_core.canonical import JsonValue

from noetl_worker.application.outcome import ErrorKind
from noetl_worker.tools.call_failed import failed, misconfigured
from noetl_worker.tools.script_source import ScriptSources
from noetl_worker.tools.sql_text import split_statements
from noetl_worker.tools.tool_config import ToolConfig

NO_SQL = "No SQL command provided"

_PLAIN = ("command", "query", "commands", "sql")
_ENCODED = ("command_b64", "query_b64")


async def sql_statements(config: ToolConfig, scripts: ScriptSources) -> list[str]:
    """The statements to run, in order; there is at least one."""
    if "script" in config.call.config and "script" in config:
        texts = _as_texts(config.call.render(await scripts.load(config)), "script")
    else:
        texts = _written_texts(config)
    if len(texts) == 1:
        statements = split_statements(texts[0])
    else:
        statements = [statement for text in texts for statement in split_statements(text)]
    if not statements:
        raise failed(ErrorKind.SCHEMA, "NO_SQL", NO_SQL)
    return statements


def _written_texts(config: ToolConfig) -> list[str]:
    written = config.call.config
    for key in _ENCODED:
        encoded = config.text(key) if key in written else None
        if encoded:
            return _as_texts(config.call.render(_decoded(encoded, key)), key)
    for key in _PLAIN:
        if key in written:
            texts = _as_texts(config.call.configured(key), key)
            if "".join(texts).strip():
                return texts
    return []


def _as_texts(value: JsonValue, key: str) -> list[str]:
    if value is None:
        return []
    if isinstance(value, str):
        return [value]
    texts = value if isinstance(value, list) else [value]
    if not all(isinstance(text, str) for text in texts):
        raise misconfigured(f"`{key}` is neither text nor a list of texts")
    return [text for text in texts if isinstance(text, str)]


def _decoded(encoded: str, key: str) -> str:
    try:
        return base64.b64decode("".join(encoded.split()), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError) as exc:
        raise misconfigured(f"`{key}` is not base64 of UTF-8 text") from exc
