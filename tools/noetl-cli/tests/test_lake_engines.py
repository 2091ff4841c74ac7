"""Which engine exports: what was named, else Spark where there is so much to do that its start is worth it."""

from __future__ import annotations

import pytest
from noetl_cli.lake import bring_up
from noetl_cli.lake.bring_up import SPARK_FROM_EVENTS, Engine, Export, chosen

MUCH, LITTLE = SPARK_FROM_EVENTS, SPARK_FROM_EVENTS - 1


@pytest.fixture(autouse=True)
def spark_is_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bring_up, "why_not_here", lambda environment: None)


@pytest.mark.parametrize(
    ("asked", "events", "engine"),
    [
        (Export(place="lake", jobs=2), MUCH, "spark"),
        (Export(place="lake", jobs=2), LITTLE, "inline"),
        (Export(place="lake", jobs=1), MUCH, "inline"),
        (Export(place="lake", jobs=1, master="spark://head:7077"), MUCH, "spark"),
        (Export(place="lake", jobs=2, engine="inline"), MUCH, "inline"),
        (Export(place="lake", jobs=1, engine="spark"), 1, "spark"),
        (Export(place="lake", jobs=2, engine="spark"), 0, "inline"),
    ],
    ids=["much", "little", "much on one core", "much on a cluster", "named inline", "named spark", "nothing at all"],
)
def test_the_engine_is_the_one_that_was_named_or_the_one_that_pays(asked: Export, events: int, engine: Engine) -> None:
    assert chosen(asked, events) == engine


def test_where_there_is_no_spark_this_process_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bring_up, "why_not_here", lambda environment: "Spark is not installed here")

    assert chosen(Export(place="lake", jobs=2), MUCH) == "inline"
