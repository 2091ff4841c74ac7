from __future__ import annotations

from pathlib import Path

import pytest
from noetl_api.settings import Settings
from noetl_servicekit.env import Address, SettingsInvalid


@pytest.fixture
def values(tmp_path: Path) -> dict[str, str]:
    tokens = tmp_path / "tokens.json"
    tokens.write_text('{"tokens": []}')
    return {
        "NOETL_POSTGRES_DSN": "postgresql://noetl_api:s3cr3t@db/noetl",
        "NOETL_PAYLOAD_URL": "file:///var/lib/noetl/payloads",
        "NOETL_PROJECTOR_ADDRESS": "projector:7000",
        "NOETL_TOKEN": "s3cr3t-token",
        "NOETL_TOKENS_FILE": str(tokens),
    }


def test_what_is_not_said_has_a_default(values: dict[str, str]) -> None:
    settings = Settings.from_env(values)

    assert settings.grpc_listen == settings.http_listen == settings.ops_listen == Address(host="127.0.0.1", port=0)
    assert (settings.pool_min_size, settings.pool_max_size, settings.background_pool_max_size) == (2, 32, 4)
    assert settings.shard_count == 64
    assert settings.playbook_env == {}


def test_secrets_are_not_shown(values: dict[str, str]) -> None:
    shown = repr(Settings.from_env({**values, "NOETL_PLAYBOOK_ENV": "KEY", "KEY": "hidden"}))

    assert "s3cr3t" not in shown
    assert "hidden" not in shown


def test_playbooks_see_only_the_variables_that_are_named(values: dict[str, str]) -> None:
    values |= {"NOETL_PLAYBOOK_ENV": "REGION, ZONE MISSING", "REGION": "north", "ZONE": "a", "OTHER": "x"}

    assert Settings.from_env(values).playbook_env == {"REGION": "north", "ZONE": "a"}


def test_everything_that_is_wrong_is_said_at_once() -> None:
    values = {
        "NOETL_POSTGRES_DSN": "mysql://db",
        "NOETL_PAYLOAD_URL": "ftp://host/payloads",
        "NOETL_SHARD_COUNT": "many",
        "NOETL_GRPC_LISTEN": "nowhere",
    }

    with pytest.raises(SettingsInvalid) as refusal:
        Settings.from_env(values)

    text = "; ".join(refusal.value.problems)
    for name in (
        "NOETL_POSTGRES_DSN",
        "NOETL_PAYLOAD_URL",
        "NOETL_SHARD_COUNT",
        "NOETL_GRPC_LISTEN",
        "NOETL_TOKEN",
        "NOETL_TOKENS_FILE",
        "NOETL_PROJECTOR_ADDRESS",
    ):
        assert name in text


def test_a_pool_cannot_be_smaller_than_its_minimum(values: dict[str, str]) -> None:
    with pytest.raises(SettingsInvalid, match="NOETL_POSTGRES_POOL_MIN_SIZE"):
        Settings.from_env({**values, "NOETL_POSTGRES_POOL_MIN_SIZE": "9", "NOETL_POSTGRES_POOL_MAX_SIZE": "4"})
