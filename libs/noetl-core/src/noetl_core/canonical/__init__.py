"""One byte form for every JSON value (RFC 8785), so that equal facts have equal checksums everywhere."""

from noetl_core.canonical.decoding import decode
from noetl_core.canonical.encoding import encode, sha256_hex
from noetl_core.canonical.normalizing import normalize
from noetl_core.canonical.spelt_object import SpeltObject, read_canonical, read_spelt
from noetl_core.canonical.values import MAX_DEPTH, MAX_SAFE_INTEGER, JsonObject, JsonValue

__all__ = [
    "MAX_DEPTH",
    "MAX_SAFE_INTEGER",
    "JsonObject",
    "JsonValue",
    "SpeltObject",
    "decode",
    "encode",
    "normalize",
    "read_canonical",
    "read_spelt",
    "sha256_hex",
]
