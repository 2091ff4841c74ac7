"""A verdict names what is wrong with a history, and is given whatever that is."""

from __future__ import annotations

import pytest
from noetl_core.errors import Corrupt
from noetl_core.evidence.verdict import HistoryCheck
from noetl_core.replay.history import Replay
from noetl_testkit.histories import EXECUTION, History, sealed, two_steps


def test_numbers_that_add_up_to_no_number_of_json_are_found_by_the_version_that_left_them() -> None:
    events = two_steps(History()).stored
    place = next(place for place, one in enumerate(events) if one.envelope().event_type == "command.completed")
    forged = sealed([*events[:place], events[place]._replace(aggregate_version=2**62), *events[place + 1 :]])
    check, replay = HistoryCheck(EXECUTION), Replay(EXECUTION)
    check.take(forged)
    replay.take(forged)

    for verdict in (check.alone(), check.against(None)):
        assert ("event.not_folded", place + 1) in {(one.code, one.stream_version) for one in verdict.findings}
        assert (verdict.is_proved, verdict.replayed, verdict.rows) == (False, {}, {})
    assert [one.code for one in check.findings] == ["event.not_folded"]
    assert "2^53-1 at /aggregate_version" in check.findings[0].message
    assert check.replayed() is None
    with pytest.raises(Corrupt, match=rf"cannot be summed as version {place + 1} has left it"):
        replay.result().checksums()
