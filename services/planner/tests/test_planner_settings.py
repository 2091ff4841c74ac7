"""Settings of the planner that are its own."""

from pathlib import Path

import pytest
from noetl_planner.settings import Settings
from noetl_servicekit.env import SettingsInvalid


@pytest.fixture
def values(tmp_path: Path) -> dict[str, str]:
    tokens = tmp_path / "tokens.json"
    tokens.write_text('{"tokens": []}')
    return {
        "NOETL_API_ADDRESS": "api:7700",
        "NOETL_NATS_URL": "nats://nats:4222",
        "NOETL_TOKEN": "secret",
        "NOETL_TOKENS_FILE": str(tokens),
        "NOETL_PAYLOAD_URL": "s3://noetl/payloads",
    }


@pytest.mark.parametrize(("told", "events"), [(None, 5_000), ("0", 0), ("100", 100), ("20000", 20_000)])
def test_long_executions_leave_snapshots_unless_the_operator_wants_none(
    values: dict[str, str], told: str | None, events: int
) -> None:
    settings = Settings.from_env(values | ({"NOETL_ROUTING_SNAPSHOT_EVENTS": told} if told is not None else {}))

    assert settings.routing_snapshot_events == events


@pytest.mark.parametrize("told", ["1", "99", "-1", "often"])
def test_an_interval_that_makes_no_sense_is_refused(values: dict[str, str], told: str) -> None:
    with pytest.raises(SettingsInvalid, match="NOETL_ROUTING_SNAPSHOT_EVENTS"):
        Settings.from_env(values | {"NOETL_ROUTING_SNAPSHOT_EVENTS": told})
