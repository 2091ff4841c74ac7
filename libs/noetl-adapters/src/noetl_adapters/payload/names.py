"""Where a payload lies below the root of a store, in directories and buckets alike."""

import re
from urllib.parse import quote

from noetl_core.errors import InvalidInput
from noetl_core.locator import payload_locator
from noetl_core.payloads import PayloadRef

WITHDRAWN = ".withdrawn"
"""Below it lies what is put aside before it is deleted. No tenant is called so: a leading dot is percent-encoded."""

OWNERS = ".owners"
"""Below it each log that refers to what is stored here has an entry."""

_MAX_NAME_BYTES = 255
_DIGEST = re.compile(r"[0-9a-f]{64}")


def payload_path(ref: PayloadRef) -> str:
    """`<tenant>/<organization>/aa/bb/<sha256>`: no directory grows too large, and a listing can go by parts."""
    sha256 = ref.sha256
    return "/".join((segment(ref.tenant_id), segment(ref.organization_id), sha256[:2], sha256[2:4], sha256))


def withdrawn_path(ref: PayloadRef) -> str:
    """Where a payload waits for its deletion, or for somebody who refers to it after all."""
    return f"{WITHDRAWN}/{payload_path(ref)}"


def organization_path(*, tenant_id: str, organization_id: str) -> str:
    """What all payloads of an organization lie below."""
    payload_locator(tenant_id=tenant_id, organization_id=organization_id, sha256="0" * 64)  # refuses bad names
    return f"{segment(tenant_id)}/{segment(organization_id)}"


def is_digest(name: str) -> bool:
    """Whether the last part of a name is one that a payload can have."""
    return _DIGEST.fullmatch(name) is not None


def segment(text: str) -> str:
    """A file name for any text: one name each, never hidden, never a way out."""
    name = quote(text, safe="")
    if name.startswith("."):
        name = f"%2E{name[1:]}"
    if len(name) > _MAX_NAME_BYTES:
        raise InvalidInput(f"{text[:40]!r}… is too long for a payload store")
    return name
