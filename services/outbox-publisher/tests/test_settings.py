import pytest
from noetl_outbox_publisher.settings import Settings
from noetl_servicekit.env import SettingsInvalid

REQUIRED = {
    "NOETL_POSTGRES_DSN": "postgresql://noetl_publisher:secret@127.0.0.1/noetl",
    "NOETL_NATS_URL": "nats://secret@127.0.0.1:4222",
    "NOETL_TOKENS_FILE": "tokens.json",
}


def test_only_addresses_must_be_given() -> None:
    settings = Settings.from_env(REQUIRED)

    assert (settings.batch_rows, settings.lease_seconds, settings.poll_seconds) == (500, 10.0, 1.0)
    assert settings.shard_count == 64


def test_everything_that_is_missing_is_named_at_once() -> None:
    with pytest.raises(SettingsInvalid) as refusal:
        Settings.from_env({})

    assert [problem.split()[0] for problem in refusal.value.problems] == sorted(
        REQUIRED, key=["NOETL_POSTGRES_DSN", "NOETL_NATS_URL", "NOETL_TOKENS_FILE"].index
    )


def test_a_batch_may_not_outlive_its_lease() -> None:
    with pytest.raises(SettingsInvalid, match="at least 4 times NOETL_OUTBOX_PUBLISH_SECONDS"):
        Settings.from_env({**REQUIRED, "NOETL_OUTBOX_LEASE_SECONDS": "7.9"})


def test_secrets_are_not_shown() -> None:
    assert "secret" not in repr(Settings.from_env(REQUIRED))
