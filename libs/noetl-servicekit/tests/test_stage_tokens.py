"""A token of a stage is made from a service's, without asking anybody, and is good for little and not for long."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from noetl_core.errors import NotAuthenticated, NotPermitted
from noetl_servicekit.stage_tokens import MAX_SECONDS, StageCaller, StageScope, stage_token
from noetl_servicekit.tokens import Tokens, token_sha256

SCOPE = StageScope(tenant_id="acme", organization_id="data", stage_id="7-ab")
NOW = 1_000_000.0


def tokens(path: Path, **roles: str) -> Tokens:
    entries = [
        {
            "name": name,
            "token_sha256": token_sha256(f"{name}-secret"),
            "tenant_id": "*" if role == "service" else "acme",
            "organization_id": "*" if role == "service" else "data",
            "role": role,
        }
        for name, role in roles.items()
    ]
    path.write_text(json.dumps({"tokens": entries}))
    return Tokens(path, now=lambda: NOW)


def caller_of(known: Tokens, token: str) -> StageCaller:
    caller = known.authenticate(f"Bearer {token}")
    assert isinstance(caller, StageCaller)
    return caller


def test_it_is_good_for_the_frames_of_its_stage_and_sees_its_tenant(tmp_path: Path) -> None:
    known = tokens(tmp_path / "tokens", other="service", worker="service")

    caller = caller_of(known, stage_token("worker-secret", SCOPE, until=NOW + 60))

    assert caller.name == "worker/stage"
    assert caller.sees("acme", "data")
    assert not caller.sees("acme", "others")
    caller.require_stage("7-ab")
    caller.require_method("/noetl.frame.v1.FrameService/Commit")
    with pytest.raises(NotPermitted):
        caller.require_stage("7-cd")
    with pytest.raises(NotPermitted):
        caller.require_method("/noetl.event.v1.EventService/Append")


@pytest.mark.parametrize(
    ("secret", "until"),
    [
        pytest.param("worker-secret", NOW, id="over"),
        pytest.param("worker-secret", NOW + MAX_SECONDS + 10, id="for ever"),
        pytest.param("somebody-secret", NOW + 60, id="made by nobody"),
        pytest.param("writer-secret", NOW + 60, id="made by somebody who is no service"),
    ],
)
def test_it_is_refused_when_it_is_not_good(tmp_path: Path, secret: str, until: float) -> None:
    known = tokens(tmp_path / "tokens", worker="service", writer="writer")

    with pytest.raises(NotAuthenticated):
        known.authenticate(f"Bearer {stage_token(secret, SCOPE, until=until)}")


def test_what_it_says_cannot_be_changed(tmp_path: Path) -> None:
    known = tokens(tmp_path / "tokens", worker="service")
    mine = stage_token("worker-secret", SCOPE, until=NOW + 60)
    theirs = stage_token("guess", StageScope(tenant_id="theirs", organization_id="x", stage_id="8-x"), until=NOW + 60)
    mixed = f"{theirs.rpartition('.')[0]}.{mine.rpartition('.')[2]}"

    for broken in (mixed, mine[:-1], "stage.", "stage.e30.00", f"{mine}x"):
        with pytest.raises(NotAuthenticated):
            known.authenticate(f"Bearer {broken}")


LIFE = 60.0


def test_it_is_exchanged_for_one_that_is_as_narrow_when_half_of_its_life_is_over(tmp_path: Path) -> None:
    known = tokens(tmp_path / "tokens", worker="service")
    caller = caller_of(known, stage_token("worker-secret", SCOPE, until=NOW + LIFE, seconds=LIFE))

    assert caller.renewed(now=NOW) == ""
    assert caller.renewed(now=NOW + LIFE / 2 - 1) == ""
    following = caller_of(known, caller.renewed(now=NOW + LIFE / 2))

    assert following == replace(caller, until=NOW + 1.5 * LIFE)
    following.require_stage("7-ab")
    assert following.renewed(now=NOW + LIFE) != "", "and so is that"


def test_one_that_says_nothing_of_others_is_the_last(tmp_path: Path) -> None:
    known = tokens(tmp_path / "tokens", worker="service")

    assert caller_of(known, stage_token("worker-secret", SCOPE, until=NOW + 1)).renewed(now=NOW) == ""


def test_none_lasts_longer_than_any_may_whatever_its_maker_says(tmp_path: Path) -> None:
    known = tokens(tmp_path / "tokens", worker="service")
    caller = caller_of(known, stage_token("worker-secret", SCOPE, until=NOW + 60, seconds=10 * MAX_SECONDS))

    assert caller_of(known, caller.renewed(now=NOW)).until == NOW + MAX_SECONDS


def test_revoking_the_token_of_its_maker_ends_those_that_it_was_exchanged_for(tmp_path: Path) -> None:
    known = tokens(tmp_path / "tokens", worker="service")
    renewed = caller_of(known, stage_token("worker-secret", SCOPE, until=NOW + 1, seconds=LIFE)).renewed(now=NOW)
    assert caller_of(known, renewed).stage_id == "7-ab"

    without = tokens(tmp_path / "others", other="service")
    with pytest.raises(NotAuthenticated):
        without.authenticate(f"Bearer {renewed}")


def test_what_seals_it_is_not_shown(tmp_path: Path) -> None:
    caller = caller_of(tokens(tmp_path / "t", worker="service"), stage_token("worker-secret", SCOPE, until=NOW + 1))

    assert token_sha256("worker-secret") not in repr(caller)
