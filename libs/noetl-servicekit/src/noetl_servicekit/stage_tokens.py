"""Tokens for the slots of one stage: made from a service's own token without asking anybody, narrow and short-lived.

What runs on executors proves with one of these whose frames it may claim; its maker's token never leaves its process.
A server that knows the maker gives another one for one that is good: as narrow, as short-lived, and no wider ever.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from noetl_core.errors import NotAuthenticated, NotPermitted

from noetl_servicekit.callers import Caller, Role

PREFIX: Final = "stage."
MAX_SECONDS: Final = 24 * 3600.0
"""Longer than anybody needs, so that a mistake of the maker's clock is no token for ever."""
METHODS: Final = frozenset(
    {
        "/noetl.catalog.v1.CatalogService/Get",
        "/noetl.credential.v1.CredentialService/Resolve",
        "/noetl.event.v1.EventService/Read",
        "/noetl.execution.v1.ExecutionService/Execute",
        "/noetl.execution.v1.ExecutionService/Get",
        "/noetl.frame.v1.FrameService/Claim",
        "/noetl.frame.v1.FrameService/Start",
        "/noetl.frame.v1.FrameService/Commit",
        "/noetl.frame.v1.FrameService/Fail",
        "/noetl.frame.v1.FrameService/Heartbeat",
    }
)
"""All that a slot calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageScope:
    """What a token is good for."""

    tenant_id: str
    organization_id: str
    stage_id: str
    """It begins with the id of its execution."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCaller(Caller):
    """A slot: what it may see is its tenant's, what it may end is of its stage."""

    stage_id: str
    until: float
    """When its token is no longer good."""
    seconds: float = 0.0
    """For how long another one is good; 0 if there is none to be had for it."""
    maker: str = field(repr=False)
    """The digest that the token was sealed with."""

    def require_method(self, full_name: str) -> None:
        """Raise NotPermitted for what slots have no business with."""
        if full_name not in METHODS:
            raise NotPermitted(f"{self.name!r} runs frames of one stage, which takes no {full_name}")

    def require_stage(self, stage_id: str) -> None:
        """Raise NotPermitted for frames of another stage."""
        if stage_id != self.stage_id:
            raise NotPermitted(f"{self.name!r} runs frames of the stage {self.stage_id}, not of {stage_id}")

    def renewed(self, *, now: float) -> str:
        """Another token for the same, if half of this one's life is over; empty if it is not, or is the last."""
        if self.seconds <= 0 or self.until - now > self.seconds / 2:
            return ""
        scope = StageScope(tenant_id=self.tenant_id, organization_id=self.organization_id, stage_id=self.stage_id)
        return _sealed(self.maker, scope, until=now + self.seconds, seconds=self.seconds)


def stage_token(token: str, scope: StageScope, *, until: float, seconds: float = 0.0) -> str:
    """A token for a stage that is good until a time, in seconds since 1970.

    Whoever keeps frames with it gets others that are good for so many seconds each.
    """
    return _sealed(hashlib.sha256(token.encode()).hexdigest(), scope, until=until, seconds=seconds)


def _sealed(digest: str, scope: StageScope, *, until: float, seconds: float) -> str:
    claims = {
        "by": _name_of(digest),
        "tenant": scope.tenant_id,
        "organization": scope.organization_id,
        "stage": scope.stage_id,
        "until": round(until, 3),
        "seconds": seconds,
    }
    body = base64.urlsafe_b64encode(json.dumps(claims, separators=(",", ":")).encode()).decode().rstrip("=")
    return f"{PREFIX}{body}.{_seal(digest, body)}"


def read_stage_token(token: str, callers: Mapping[str, Caller], *, now: float) -> StageCaller:
    """The slot behind a token; every refusal reads the same, and only a service's token makes others."""
    refusal = NotAuthenticated("nobody has this token, or it is no longer good")
    body, _, seal = token.removeprefix(PREFIX).partition(".")
    try:
        claims = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
        maker, until, seconds = str(claims["by"]), float(claims["until"]), float(claims.get("seconds", 0))
        digest = next((digest for digest in _services(callers) if _name_of(digest) == maker), None)
        if digest is None or not hmac.compare_digest(_seal(digest, body), seal):
            raise refusal
        if not now < until <= now + MAX_SECONDS:
            raise refusal
        return StageCaller(
            name=f"{callers[digest].name}/stage",
            tenant_id=str(claims["tenant"]),
            organization_id=str(claims["organization"]),
            role=Role.SERVICE,
            stage_id=str(claims["stage"]),
            until=until,
            seconds=min(seconds, MAX_SECONDS),
            maker=digest,
        )
    except (ValueError, KeyError, TypeError) as exc:
        raise refusal from exc


def _services(callers: Mapping[str, Caller]) -> Iterable[str]:
    return (digest for digest, caller in callers.items() if caller.role is Role.SERVICE)


def _name_of(digest: str) -> str:
    """Says whose digest it is without giving it away."""
    return hashlib.sha256(f"stage-token/{digest}".encode()).hexdigest()[:16]


def _seal(digest: str, body: str) -> str:
    return hmac.new(bytes.fromhex(digest), body.encode(), hashlib.sha256).hexdigest()
