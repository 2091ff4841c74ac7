"""What any event of a user may say about a business object, and what is refused before it is in the log."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from noetl_core.canonical import encode
from noetl_core.envelope import Envelope
from noetl_core.errors import InvalidInput, NotCanonical
from noetl_core.values import dataclass

META_KEY: Final = "business_object"
AGGREGATE: Final = "business_object"
MAX_CHANGE_BYTES: Final = 16 * 1024
"""Of `state` or `patch` in one event; what is larger is stored first and referred to by `payload_ref`."""
MAX_ANCESTORS: Final = 16
DELETED: Final = "deleted"
"""The status of what is gone, and of nothing else."""

_TYPE: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}", re.ASCII)
_FIELDS: Final = frozenset({"type", "id", "status", "state", "patch", "deleted", "derived_from"})
_MAX_ID: Final = 256
_MAX_STATUS: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectChanged:
    """A business object has a new state, is changed in part, is gone, or is only mentioned."""

    object_type: str
    object_id: str
    status: str = ""
    state: Mapping[str, Any] | None = None
    """Replaces all that was known."""
    patch: Mapping[str, Any] | None = None
    """Is merged into what was known, as RFC 7386 says: null removes a member."""
    deleted: bool = False
    derived_from: tuple[Mapping[str, str], ...] = ()
    """Objects that it was made from: `{type, id}` each."""

    @property
    def key(self) -> str:
        """Its identity within the execution."""
        return f"{self.object_type}/{self.object_id}"


def object_change(envelope: Envelope) -> ObjectChanged | None:
    """What an event says about a business object; None if it says nothing, or nothing that can be read."""
    if META_KEY not in envelope.meta:
        return None
    try:
        return read_change(envelope.meta[META_KEY])
    except InvalidInput:  # of a service, or a later release: as unknown as any event that cannot be read
        return None


def new_change(value: object) -> ObjectChanged:
    """As `read_change`, for what is to be written: refuses also what older logs may hold, which is read as ever."""
    change = read_change(value)
    if change.status == DELETED and not change.deleted:
        raise InvalidInput(f"'{META_KEY}.status' is {DELETED!r} only of what is gone: say \"deleted\": true")
    return change


def read_change(value: object) -> ObjectChanged:
    """The change that `meta.business_object` describes; raises `InvalidInput` that says what is wrong with it."""
    if not isinstance(value, Mapping):
        raise InvalidInput(f"'{META_KEY}' is an object, not {type(value).__name__}")
    if unknown := sorted(value.keys() - _FIELDS):
        raise InvalidInput(f"'{META_KEY}' has only {', '.join(sorted(_FIELDS))}, not {', '.join(unknown)}")
    deleted = value.get("deleted", False)
    if type(deleted) is not bool:
        raise InvalidInput(f"'{META_KEY}.deleted' is true or false, not {deleted!r}")
    state, patch = _object(value, "state"), _object(value, "patch")
    if sum((state is not None, patch is not None, deleted)) > 1:
        raise InvalidInput(f"'{META_KEY}' has at most one of state, patch and deleted")
    return ObjectChanged(
        object_type=_type(value.get("type"), "type"),
        object_id=_id(value.get("id"), "id"),
        status=_status(value.get("status", "")),
        state=state,
        patch=patch,
        deleted=deleted,
        derived_from=_ancestors(value.get("derived_from", ())),
    )


def _type(value: object, name: str) -> str:
    if not isinstance(value, str) or not _TYPE.fullmatch(value):
        raise InvalidInput(f"'{META_KEY}.{name}' is a letter and up to 63 letters, digits, _ . or -, not {value!r}")
    return value


def _id(value: object, name: str) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= _MAX_ID or not value.isprintable():
        raise InvalidInput(f"'{META_KEY}.{name}' is printable text of 1 to {_MAX_ID} characters, not {value!r}")
    return value


def _status(value: object) -> str:
    if not isinstance(value, str) or len(value) > _MAX_STATUS:
        raise InvalidInput(f"'{META_KEY}.status' is text of at most {_MAX_STATUS} characters")
    return value


def _object(value: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    part = value.get(name)
    if part is None:
        return None
    if not isinstance(part, Mapping):
        raise InvalidInput(f"'{META_KEY}.{name}' is an object, not {type(part).__name__}")
    try:
        size = len(encode(dict(part)))
    except NotCanonical as exc:
        raise InvalidInput(f"'{META_KEY}.{name}' cannot be stored: {exc.message}") from exc
    if size > MAX_CHANGE_BYTES:
        raise InvalidInput(
            f"'{META_KEY}.{name}' has {size} bytes, more than {MAX_CHANGE_BYTES}: store it and refer to it"
        )
    return part


def _ancestors(value: object) -> tuple[Mapping[str, str], ...]:
    if not isinstance(value, list | tuple) or len(value) > MAX_ANCESTORS:
        raise InvalidInput(f"'{META_KEY}.derived_from' is a list of at most {MAX_ANCESTORS} objects")
    found = []
    for one in value:
        if not isinstance(one, Mapping) or one.keys() != {"type", "id"}:
            raise InvalidInput(f"'{META_KEY}.derived_from' names each object by type and id")
        found.append({"type": _type(one["type"], "derived_from.type"), "id": _id(one["id"], "derived_from.id")})
    return tuple(found)
