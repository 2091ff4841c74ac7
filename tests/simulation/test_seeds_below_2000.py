"""The second half of the seeds that every change has to pass; `make simulate` looks at others."""

import pytest
from noetl_testkit.simulation.shrink import failing_report


@pytest.mark.parametrize("first", range(1000, 2000, 50))
def test_every_history_is_whole_whatever_goes_wrong(first: int) -> None:
    assert failing_report(range(first, first + 50)) == ""
