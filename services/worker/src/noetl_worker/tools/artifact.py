"""The artifact tool: loads a stored value by its reference."""

from __future__ import annotations

from typing import Protocol

from noetl_core.canonical import JsonObject, JsonValue
from noetl_core.errors import InvalidInput, LocatorInvalid, NoetlError, NotCanonical
from noetl_core.locator import parse, payload_locator
from noetl_core.payloads import UNKNOWN_MEDIA_TYPE, PayloadRef
from noetl_core.ports.payloads import REFERENCE_NOT_AVAILABLE
from noetl_servicekit.stored_values import StoredValues

from noetl_worker.application.outcome import ErrorKind, Outcome
from noetl_worker.application.result_refs import result_ref
from noetl_worker.application.tool_call import ToolCall
from noetl_worker.tools.call_failed import CallFailed, failed, misconfigured
from noetl_worker.tools.tool_config import ToolConfig


class ResultReferences(Protocol):
    """Who knows where the result of a step is stored, of which only the short digest is in its locator."""

    async def find(self, call: ToolCall, locator: str) -> PayloadRef | None:
        """The payload behind `noetl://execution/<id>/result/<step>/<digest>`, if it is known here."""
        ...


class EarlierResults:
    """Knows the results that the step's own execution has told, which is all that a worker is told of."""

    async def find(self, call: ToolCall, locator: str) -> PayloadRef | None:
        """The payload of the step whose result has this address."""
        references = (result.get("reference") or {} for result in call.results.values())
        return next((result_ref(one) for one in references if one.get("ref_id") == locator), None)


class ArtifactTool:
    """`action: get` with `input.result_ref`, the `_ref` of a large result or its address."""

    def __init__(self, values: StoredValues, *, references: ResultReferences | None = None) -> None:
        self._values = values
        self._references = references

    async def run(self, call: ToolCall) -> Outcome:
        """The value, on top and as `data`; a reference that leads nowhere is an error that may pass."""
        config = ToolConfig(call)
        try:
            action = config.text("action") or "get"
            if action != "get":
                raise misconfigured(f"`action` is {action!r}, only `get` is possible")
            written = call.input.get("result_ref", call.config.get("result_ref"))
            value = await self._load(call, config.call.render(written))
        except CallFailed as exc:
            return exc.outcome
        top: JsonObject = value if isinstance(value, dict) else {}
        return Outcome(data={**top, "data": value})

    async def _load(self, call: ToolCall, reference: JsonValue) -> JsonValue:
        try:
            ref = await self._payload_ref(call, reference)
            if (ref.tenant_id, ref.organization_id) != (call.tenant_id, call.organization_id):
                raise _not_available("it belongs to somebody else")
            return await self._values.get(ref)
        except NotCanonical as exc:
            raise failed(ErrorKind.PARSE, "ARTIFACT_NOT_JSON", f"the stored value is no JSON: {exc.message}") from exc
        except InvalidInput as exc:
            raise misconfigured(f"`result_ref` is no reference: {exc.message}") from exc
        except NoetlError as exc:
            raise _not_available(exc.message) from exc

    async def _payload_ref(self, call: ToolCall, reference: JsonValue) -> PayloadRef:
        if isinstance(reference, dict) and isinstance(reference.get("_ref"), dict):
            reference = reference["_ref"]  # the whole view of a large result was given
        if isinstance(reference, dict):
            sha256 = reference.get("sha256")
            if isinstance(sha256, str):
                return _by_digest(call, sha256, uri=reference.get("uri"))
            reference = reference.get("ref") or reference.get("uri")
        if not isinstance(reference, str) or not reference:
            raise misconfigured("an artifact step needs `input.result_ref`, a reference or its address")
        locator = parse(reference)
        if locator.kind == "payload":
            return _by_digest(call, locator.segments[-1], uri=reference)
        found = None if self._references is None else await self._references.find(call, reference)
        if found is None:
            raise _not_available(f"nothing is known of {reference}")
        return found


def _by_digest(call: ToolCall, sha256: str, *, uri: JsonValue) -> PayloadRef:
    """The store needs no more than a digest; who the payload belongs to is checked by its address, if there is one."""
    own = str(payload_locator(tenant_id=call.tenant_id, organization_id=call.organization_id, sha256=sha256))
    address = uri if isinstance(uri, str) and _is_payload(uri) else own
    return PayloadRef(uri=address, sha256=sha256, media_type=UNKNOWN_MEDIA_TYPE, bytes=0)


def _is_payload(uri: str) -> bool:
    try:
        return parse(uri).kind == "payload"
    except LocatorInvalid:
        return False


def _not_available(reason: str) -> CallFailed:
    message = f"the value cannot be loaded: {reason}"
    return failed(ErrorKind.STORAGE_ACCESS, REFERENCE_NOT_AVAILABLE, message, retryable=True)
