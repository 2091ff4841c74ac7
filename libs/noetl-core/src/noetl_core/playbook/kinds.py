"""The words of each tool kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from noetl_core.playbook.sections import Key, Section, Templates
from noetl_core.playbook.shapes import Anything, Below, Choice, Either, Items, Map, Number, Template, Text
from noetl_core.playbook.support import Feature
from noetl_core.playbook.task_model import ToolKind
from noetl_core.playbook.task_vocabulary import (
    AUTH,
    COMMON_KEYS,
    FLAG,
    MAP,
    SECONDS_OR_TEMPLATE,
    positive_count,
    rendered,
)

SCRIPT_TYPES = ("inline", "file", "gcs", "s3", "http")
NATS_OPERATIONS = ("kv_put", "kv_get", "kv_delete", "kv_keys")
NATS_OPERATION_PREFIXES = ("object_", "js_")
PASSWORD_KEYS = frozenset({"password", "db_password"})
"""What never stands in a playbook, since playbooks are stored and shown."""

_IGNORED = frozenset({"retry"})
_TEXTS = Either(Text(), Items(Text()))
_WHOLE = Number(what="a whole number", is_whole=True, minimum=0, or_template=True)


def _as_written(says: str, *, shape: Text | Either | None = None) -> Key:
    """Text of another language: what is no template there is run as it is."""
    return Key(shape=shape or Text(), says=says, templates=Templates.OR_AS_WRITTEN)


SCRIPT_SOURCE = Section(
    name="script_source",
    title="the source of a script",
    other=rendered(Anything(), ""),
    keys={"type": Key(shape=Choice(words=SCRIPT_TYPES), required=True, says="where the script is")},
)
SCRIPT = Section(
    name="script",
    title="`script`",
    keys={
        "uri": Key(shape=Text(), required=True, templates=Templates.OR_AS_WRITTEN, says="the script, or its place"),
        "source": Key(shape=Below(SCRIPT_SOURCE)),
    },
)
_SCRIPT = Key(shape=Below(SCRIPT), feature=Feature.SCRIPT, says="run what stands elsewhere")

LIB = Section(
    name="lib",
    title="an import",
    keys={
        "from": Key(shape=Text(), required=True, says="a module"),
        "import": Key(shape=Text(), required=True, says="a name in it"),
    },
)
PYTHON = {
    "script": _SCRIPT,
    "code_b64": Key(shape=Text(), says="the code in base64"),
    "code": _as_written("python; the variable `result` or what `main` returns is the result"),
    "libs": Key(shape=Either(Map(Either(Text(), Below(LIB))), Items()), says="names for modules"),
}
HTTP = {
    "url": rendered(Text(), "where the request goes"),
    "endpoint": rendered(Text(), "another word for `url`", is_older=True),
    "method": rendered(Text(), "GET unless something else is written"),
    "headers": rendered(MAP, "headers of the request"),
    "params": rendered(MAP, "parameters of the URL"),
    "json": rendered(Anything(), "the body, sent as JSON"),
    "payload": rendered(Anything(), "the body, sent as JSON"),
    "body": rendered(Anything(), "the body"),
    "form": rendered(Anything(), "the body, sent as a form"),
    "data": rendered(Anything(), "the body, or {query, body}"),
    "timeout_seconds": rendered(SECONDS_OR_TEMPLATE, "another word for `timeout`"),
    "verify_ssl": rendered(FLAG, "whether the server's certificate is checked"),
    "follow_redirects": rendered(FLAG, "whether redirects are followed"),
}
_SQL = {
    "command": rendered(Text(), "SQL statements"),
    "query": rendered(Text(), "SQL statements"),
    "commands": rendered(_TEXTS, "SQL statements, one by one"),
    "command_b64": rendered(Text(), "SQL statements in base64"),
    "query_b64": rendered(Text(), "SQL statements in base64"),
    "script": _SCRIPT,
}
POSTGRES = {
    **_SQL,
    "pool": rendered(Anything(), "how connections are kept"),
    "credential": Key(
        shape=Text(),
        templates=Templates.RENDERED,
        feature=Feature.CREDENTIALS,
        is_older=True,
        says="another word for `auth`",
    ),
}
DUCKDB = {**_SQL, "pool": rendered(Anything(), "how connections are kept"), "database": rendered(Text(), "a file")}
LAKE = {
    "catalog_name": rendered(Text(), "the name of the catalog"),
    "catalog_connection": rendered(Text(), "where the catalog is kept"),
    "data_path": rendered(Text(), "where the data is kept"),
}
SPARK = {
    "sql": rendered(Text(), "a query over the inputs"),
    "code": _as_written("python that defines main(spark, **inputs)"),
}
NOOP = {"result": rendered(Anything(), "the result")}
WORKBOOK = {"task": rendered(Text(), "the name of a task of the workbook")}
PLAYBOOK = {
    "path": rendered(Text(), "the playbook's path in the catalog", required=True),
    "payload": rendered(MAP, "another word for `input`"),
    "version": rendered(positive_count(), "its version (the newest)"),
    "return_step": rendered(Text(), "wait for the end; the result of this step is the result"),
}
SHELL = {"cmds": Key(shape=_TEXTS, required=True, templates=Templates.OR_AS_WRITTEN, says="commands for /bin/sh")}
_TRANSFER_MODE = rendered(
    Choice(words=("append", "replace", "upsert"), or_template=True), "what becomes of rows that are there"
)
TRANSFER_SOURCE = Section(
    name="transfer_source",
    title="the source of a transfer",
    keys={
        "type": rendered(Text(), "the kind of tool that reads", required=True),
        "url": rendered(Text(), "http: where to read"),
        "method": rendered(Text(), "http: GET unless something else is written"),
        "auth": AUTH,
        "query": rendered(Text(), "SQL that selects the rows"),
        "headers": rendered(MAP, "http: headers of the request"),
        "data_path": rendered(Text(), "http: where the rows stand in the body"),
        "database": rendered(Text(), "duckdb: the file, else memory"),
    },
)
TRANSFER_TARGET = Section(
    name="transfer_target",
    title="the target of a transfer",
    keys={
        "type": rendered(Text(), "the kind of tool that writes", required=True),
        "auth": AUTH,
        "table": rendered(Text(), "where the rows go"),
        "mapping": rendered(MAP, "column: field"),
        "mode": _TRANSFER_MODE,
        "key": rendered(_TEXTS, "upsert: the column or columns that tell rows apart"),
        "database": rendered(Text(), "duckdb: the file"),
    },
)
TRANSFER = {
    "source": Key(shape=Below(TRANSFER_SOURCE), required=True),
    "target": Key(shape=Below(TRANSFER_TARGET), required=True),
    "mode": replace(_TRANSFER_MODE, is_older=True, says="another place for `target.mode`"),
    "chunk_size": rendered(positive_count(), "rows that are written at once"),
}
ARTIFACT = {"action": rendered(Choice(words=("get",), or_template=True), "get: load a stored value")}
NATS = {
    "operation": rendered(Text(), "kv_put, kv_get, kv_delete, kv_keys, object_…, js_…", required=True),
    "bucket": rendered(Text(), "the key-value or object bucket"),
    "key": rendered(Text(), "the key"),
    "value": rendered(Anything(), "what is put"),
    "stream": rendered(Text(), "js_…: the stream"),
    "subject": rendered(Text(), "js_…: the subject"),
    "data": rendered(Anything(), "object_…, js_…: what is sent"),
    "headers": rendered(MAP, "js_…: headers of the message"),
    "seq": rendered(_WHOLE, "js_get: the message by its number"),
    "pattern": rendered(Text(), "kv_keys: which keys"),
    "encoding": rendered(Text(), "object_…: base64 for what is no text"),
}
CONTAINER = {
    "image": rendered(Text(), "what runs"),
    "command": rendered(_TEXTS, "what is started in it"),
    "args": rendered(_TEXTS, "its arguments"),
    "env": rendered(Either(Map(), Items(), Template()), "its environment"),
    "resources": rendered(MAP, "what it may use"),
    "timeout_seconds": rendered(SECONDS_OR_TEMPLATE, "another word for `timeout`"),
    "backoff_limit": rendered(_WHOLE, "how often it is tried again"),
    "namespace": rendered(Text(), "where it runs"),
    "service_account": rendered(Text(), "as whom it runs"),
}
_JOB_KEYS = ("image", "command", "resources", "backoff_limit", "namespace", "service_account")
"""What only a Job of Kubernetes has: on a worker they would mean nothing."""
SCRIPT_TOOL = {
    "script": Key(shape=Either(Text(), Below(SCRIPT)), feature=Feature.SCRIPT, says="the file, or where it is"),
    "uri": rendered(Text(), "another word for `script`: a path or an address"),
    **CONTAINER,
    "args": rendered(_TEXTS, "arguments of a script for /bin/sh (.sh)"),
    "env": rendered(Either(Map(), Items(), Template()), "more variables of a script for /bin/sh (.sh)"),
    **{key: replace(CONTAINER[key], feature=Feature.SCRIPT_JOB) for key in _JOB_KEYS},
}
SUBSCRIPTION = {
    "source": rendered(Text(), "the kind of broker"),
    "operation": rendered(Text(), "what is done"),
    "topic": rendered(Text(), "the topic"),
    "subscription": rendered(Text(), "the subscription"),
    "group": rendered(Text(), "the consumer group"),
    "batch": rendered(positive_count(), "how many messages at most"),
    "timeout_ms": rendered(positive_count(), "how long to wait for them"),
    "ack": rendered(Either(Text(), FLAG), "when messages are acknowledged"),
}
AGENT = {
    "framework": rendered(Text(), "which framework"),
    "entrypoint": rendered(Text(), "what is started"),
    "payload": rendered(Anything(), "what it is given"),
}


_AT_LEAST_ONE = {
    ToolKind.HTTP: ("url", "endpoint"),
    ToolKind.PYTHON: ("code", "code_b64", "script"),
    ToolKind.CONTAINER: ("image",),
    ToolKind.SCRIPT: ("script", "uri", "image"),
}
_MISSING_CODES = {ToolKind.SCRIPT: "tool_config"}
_EXACTLY_ONE = {ToolKind.SPARK: ("sql", "code")}


def _kind(kind: ToolKind, keys: Mapping[str, Key]) -> Section:
    return Section(
        name=f"tool_{kind}",
        title=f"{_article(kind)} {kind} tool",
        keys={**COMMON_KEYS, **keys},
        ignored=_IGNORED,
        missing_code=_MISSING_CODES.get(kind, "missing_field"),
        at_least_one=_AT_LEAST_ONE.get(kind, ()),
        exactly_one=_EXACTLY_ONE.get(kind, ()),
    )


def _article(kind: ToolKind) -> str:
    return "an" if kind[0] in "aeiou" or kind is ToolKind.HTTP else "a"


KINDS: Mapping[str, Section] = {
    kind: _kind(kind, keys)
    for kind, keys in {
        ToolKind.AGENT: AGENT,
        ToolKind.ARTIFACT: ARTIFACT,
        ToolKind.CONTAINER: CONTAINER,
        ToolKind.DUCKDB: DUCKDB,
        ToolKind.DUCKLAKE: {**DUCKDB, **LAKE},
        ToolKind.HTTP: HTTP,
        ToolKind.NATS: NATS,
        ToolKind.NOOP: NOOP,
        ToolKind.PLAYBOOK: PLAYBOOK,
        ToolKind.POSTGRES: POSTGRES,
        ToolKind.PYTHON: PYTHON,
        ToolKind.SCRIPT: SCRIPT_TOOL,
        ToolKind.SHELL: SHELL,
        ToolKind.SNOWFLAKE: POSTGRES,
        ToolKind.SPARK: SPARK,
        ToolKind.SUBSCRIPTION: SUBSCRIPTION,
        ToolKind.TRANSFER: TRANSFER,
        ToolKind.WORKBOOK: WORKBOOK,
    }.items()
}
"""By kind."""

TOOL = Section(
    name="tool",
    title="a tool",
    keys=COMMON_KEYS,
    ignored=_IGNORED,
    other=rendered(Anything(), ""),
    variants=KINDS,
)
"""What a tool has whatever its kind; a kind of a plug-in may have any other key."""
