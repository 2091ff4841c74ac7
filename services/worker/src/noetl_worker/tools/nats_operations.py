"""What a nats step can do: keys and values, objects, messages of a stream."""

from __future__ import annotations

import base64
import binascii
import fnmatch
import io
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

from nats.js import JetStreamContext
from nats.js.errors import KeyNotFoundError, NoKeysError, NotFoundError, ObjectNotFoundError
from noetl_core.canonical import JsonObject, JsonValue, normalize
from noetl_core.errors import NotCanonical

from noetl_worker.application.outcome import ErrorKind
from noetl_worker.tools.call_failed import failed, misconfigured
from noetl_worker.tools.nats_connections import NatsLimits
from noetl_worker.tools.tool_config import as_number, as_text

_NO_MESSAGE = 10037
"""The server's code for a message that is not there, as opposed to a stream that is not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsCall:
    """The parameters of one operation."""

    operation: str
    parameters: Mapping[str, JsonValue]
    limits: NatsLimits
    idempotency_key: str | None = None

    def text(self, *names: str) -> str:
        """A parameter that the operation cannot do without."""
        text = self.optional_text(*names)
        if not text:
            raise misconfigured(f"`{self.operation}` needs `{names[0]}`")
        return text

    def optional_text(self, *names: str) -> str | None:
        """A parameter, or nothing."""
        value = next((self.parameters[name] for name in names if self.parameters.get(name) is not None), None)
        return as_text(value, names[0])

    def sequence(self) -> int | None:
        """A place in a stream."""
        value = self.parameters.get("seq")
        return None if value is None else int(as_number(value, "seq"))

    def content(self, *names: str) -> bytes:
        """What is to be stored or sent: text as it is, base64 if it says so, anything else as JSON."""
        for name in names:
            if name in self.parameters:
                return self._encoded(self.parameters[name])
        raise misconfigured(f"`{self.operation}` needs `{names[0]}`")

    def _encoded(self, value: JsonValue) -> bytes:
        if not isinstance(value, str):
            return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
        if self.parameters.get("encoding") != "base64":
            return value.encode()
        try:
            return base64.b64decode(value, validate=True)
        except binascii.Error as exc:
            raise misconfigured("the value is not base64") from exc


def told(data: bytes) -> tuple[JsonValue, JsonObject]:
    """A stored value as a result has it, and what must be said about it: JSON if it is, else text, else base64."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return base64.b64encode(data).decode(), {"encoding": "base64"}
    try:
        return normalize(json.loads(text)), {}
    except (ValueError, RecursionError, NotCanonical):
        return text, {}


async def kv_put(js: JetStreamContext, call: NatsCall) -> JsonObject:
    bucket, key = call.text("bucket"), call.text("key")
    content = call.content("value", "data")
    revision = await (await js.key_value(bucket)).put(key, content)
    return {"status": "success", "bucket": bucket, "key": key, "revision": revision}


async def kv_get(js: JetStreamContext, call: NatsCall) -> JsonObject:
    bucket, key = call.text("bucket"), call.text("key")
    store = await js.key_value(bucket)
    try:
        entry = await store.get(key)
    except KeyNotFoundError:
        return {"status": "not_found", "bucket": bucket, "key": key, "value": None}
    value, facts = told(entry.value or b"")
    return {
        "status": "success",
        "bucket": bucket,
        "key": key,
        "value": value,
        "revision": entry.revision,
        **facts,
    }


async def kv_delete(js: JetStreamContext, call: NatsCall) -> JsonObject:
    bucket, key = call.text("bucket"), call.text("key")
    store = await js.key_value(bucket)
    status = "success"
    try:
        await store.get(key)
    except KeyNotFoundError:
        status = "not_found"
    if status == "success":
        await (store.purge(key) if call.operation == "kv_purge" else store.delete(key))
    return {"status": status, "bucket": bucket, "key": key}


async def kv_keys(js: JetStreamContext, call: NatsCall) -> JsonObject:
    bucket, pattern = call.text("bucket"), call.optional_text("pattern", "key")
    try:
        keys = await (await js.key_value(bucket)).keys()
    except NoKeysError:
        keys = []
    return {"status": "success", "bucket": bucket, **_listed("keys", sorted(keys), pattern, call)}


async def object_put(js: JetStreamContext, call: NatsCall) -> JsonObject:
    bucket, name = call.text("bucket"), call.text("key", "name")
    content = call.content("data", "value")
    info = await (await js.object_store(bucket)).put(name, content)
    return {"status": "success", "bucket": bucket, "name": name, "size": info.size, "digest": info.digest}


async def object_get(js: JetStreamContext, call: NatsCall) -> JsonObject:
    bucket, name = call.text("bucket"), call.text("key", "name")
    store = await js.object_store(bucket)
    try:
        info = await store.get_info(name)
        if (info.size or 0) > call.limits.max_value_bytes:
            message = f"the object has {info.size} bytes, {call.limits.max_value_bytes} are allowed"
            raise failed(ErrorKind.STORAGE_QUOTA, "RESULT_TOO_LARGE", message)
        content = io.BytesIO()
        await store.get(name, writeinto=content)
    except ObjectNotFoundError:
        return {"status": "not_found", "bucket": bucket, "name": name, "data": None}
    value, facts = told(content.getvalue())
    size = len(content.getvalue())
    return {"status": "success", "bucket": bucket, "name": name, "data": value, "size": size, **facts}


async def object_info(js: JetStreamContext, call: NatsCall) -> JsonObject:
    bucket, name = call.text("bucket"), call.text("key", "name")
    try:
        info = await (await js.object_store(bucket)).get_info(name)
    except ObjectNotFoundError:
        return {"status": "not_found", "bucket": bucket, "name": name}
    described: JsonObject = {"size": info.size, "chunks": info.chunks, "digest": info.digest}
    return {"status": "success", "bucket": bucket, "name": name, **described}


async def object_delete(js: JetStreamContext, call: NatsCall) -> JsonObject:
    bucket, name = call.text("bucket"), call.text("key", "name")
    try:
        await (await js.object_store(bucket)).delete(name)
    except ObjectNotFoundError:
        return {"status": "not_found", "bucket": bucket, "name": name}
    return {"status": "success", "bucket": bucket, "name": name}


async def object_list(js: JetStreamContext, call: NatsCall) -> JsonObject:
    bucket, pattern = call.text("bucket"), call.optional_text("pattern")
    store = await js.object_store(bucket)
    try:
        found = {info.name: info for info in await store.list(ignore_deletes=True)}
    except NotFoundError:
        found = {}
    listed = _listed("objects", sorted(found), pattern, call)
    names = listed["objects"]
    listed["objects"] = [
        {"name": name, "size": found[str(name)].size, "digest": found[str(name)].digest}
        for name in (names if isinstance(names, list) else [])
    ]
    return {"status": "success", "bucket": bucket, **listed}


async def js_publish(js: JetStreamContext, call: NatsCall) -> JsonObject:
    subject, stream = call.text("subject"), call.optional_text("stream")
    given = call.parameters.get("headers")
    headers = {str(name): str(value) for name, value in given.items()} if isinstance(given, dict) else {}
    if call.idempotency_key is not None:
        headers.setdefault("Nats-Msg-Id", call.idempotency_key)  # a repeated call publishes nothing twice
    ack = await js.publish(subject, call.content("data", "value"), stream=stream, headers=headers or None)
    return {
        "status": "success",
        "stream": ack.stream,
        "subject": subject,
        "seq": ack.seq,
        "duplicate": bool(ack.duplicate),
    }


async def js_get(js: JetStreamContext, call: NatsCall) -> JsonObject:
    stream, subject, sequence = call.text("stream"), call.optional_text("subject"), call.sequence()
    if subject is None and sequence is None:
        raise misconfigured(f"`{call.operation}` needs `seq`, or `subject` for its last message")
    try:
        message = await js.get_msg(stream, seq=sequence, subject=subject if sequence is None else None)
    except NotFoundError as exc:
        if exc.err_code != _NO_MESSAGE:
            raise
        return {"status": "not_found", "stream": stream, "data": None}
    value, facts = told(message.data or b"")
    return {
        "status": "success",
        "stream": stream,
        "subject": message.subject,
        "seq": message.seq,
        "data": value,
        "time": message.time.isoformat() if isinstance(message.time, datetime) else None,
        "headers": {**message.headers} if message.headers else None,
        **facts,
    }


async def js_stream_info(js: JetStreamContext, call: NatsCall) -> JsonObject:
    stream = call.text("stream")
    info = await js.stream_info(stream)
    subjects: list[JsonValue] = list(info.config.subjects or [])
    return {
        "status": "success",
        "stream": stream,
        "subjects": subjects,
        "messages": info.state.messages,
        "bytes": info.state.bytes,
        "first_seq": info.state.first_seq,
        "last_seq": info.state.last_seq,
        "consumer_count": info.state.consumer_count,
    }


OPERATIONS: Mapping[str, Callable[[JetStreamContext, NatsCall], Awaitable[JsonObject]]] = {
    "kv_put": kv_put,
    "kv_get": kv_get,
    "kv_delete": kv_delete,
    "kv_purge": kv_delete,
    "kv_keys": kv_keys,
    "object_put": object_put,
    "object_get": object_get,
    "object_info": object_info,
    "object_delete": object_delete,
    "object_list": object_list,
    "js_publish": js_publish,
    "js_get": js_get,
    "js_get_msg": js_get,
    "js_stream_info": js_stream_info,
}


def _listed(what: str, names: list[str], pattern: str | None, call: NatsCall) -> JsonObject:
    chosen = [name for name in names if pattern is None or fnmatch.fnmatchcase(name, pattern)]
    if len(chosen) > call.limits.max_names:
        message = f"there are {len(chosen)} names, {call.limits.max_names} are allowed; use `pattern`"
        raise failed(ErrorKind.STORAGE_QUOTA, "RESULT_TOO_LARGE", message)
    return {what: [*chosen], "count": len(chosen)}
