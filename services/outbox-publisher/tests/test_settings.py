from pathlib import Path

import pytest
from noetl_outbox_publisher.settings import Settings
from noetl_servicekit.env import SettingsInvalid


@pytest.fixture
def required(tmp_path: Path) -> dict[str, str]:
    tokens = tmp_path / "tokens.json"
    tokens.write_text('{"tokens": []}')
    return {
        "NOETL_POSTGRES_DSN": "postgresql://noetl_publisher:s3cr3t@127.0.0.1/noetl",
        "NOETL_NATS_URL": "nats://s3cr3t@127.0.0.1:4222",
        "NOETL_TOKENS_FILE": str(tokens),
    }


def test_only_addresses_must_be_given(required: dict[str, str]) -> None:
    settings = Settings.from_env(required)

    assert (settings.batch_rows, settings.lease_seconds, settings.poll_seconds) == (500, 10.0, 1.0)
    assert settings.shard_count == 64


def test_everything_that_is_missing_is_named_at_once() -> None:
    with pytest.raises(SettingsInvalid) as refusal:
        Settings.from_env({})

    named = [problem.split()[0] for problem in refusal.value.problems]
    assert named == ["NOETL_POSTGRES_DSN", "NOETL_NATS_URL", "NOETL_TOKENS_FILE"]


def test_a_batch_may_not_outlive_its_lease(required: dict[str, str]) -> None:
    with pytest.raises(SettingsInvalid, match="at least 4 times NOETL_OUTBOX_PUBLISH_SECONDS"):
        Settings.from_env({**required, "NOETL_OUTBOX_LEASE_SECONDS": "7.9"})


def test_secrets_are_not_shown(required: dict[str, str]) -> None:
    assert "s3cr3t" not in repr(Settings.from_env(required))
