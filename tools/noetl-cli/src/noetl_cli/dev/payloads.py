"""Reads payloads of the stack on this machine, straight from its payload store."""

import os
from collections.abc import Mapping
from typing import Any

from noetl_adapters.payload.open_store import open_payload_store
from noetl_core.canonical import JsonValue, decode
from noetl_core.errors import InvalidInput
from noetl_core.payloads import PayloadRef
from noetl_servicekit.loop_results import LoopResults, ReadEvents, is_loop_reference

__all__ = ["is_loop_reference", "read_json", "read_loop"]

_FIELDS = ("uri", "sha256", "media_type", "bytes")
"""What the reference of a result says about the payload; it has more to say about the result."""


async def read_json(payload_url: str, reference: object) -> JsonValue:
    """The value that the reference of a result names; null when there is none."""
    if reference is None:
        return None
    if not isinstance(reference, Mapping) or not reference.keys() >= set(_FIELDS):
        raise InvalidInput(f"a reference has at least {', '.join(_FIELDS)}")
    ref = PayloadRef(**{name: reference[name] for name in _FIELDS})
    if not ref.media_type.startswith("application/json"):
        raise InvalidInput(f"a payload of {ref.media_type} cannot be shown as JSON")
    async with open_payload_store(payload_url, os.environ) as store:
        return decode(await store.get(ref))


async def read_loop(payload_url: str, log: ReadEvents, execution_id: int, result: Mapping[str, Any]) -> JsonValue:
    """What the items of a loop gave, in the order of their indices."""
    async with open_payload_store(payload_url, os.environ) as store:
        return await LoopResults(log, store)(None, execution_id, result)
