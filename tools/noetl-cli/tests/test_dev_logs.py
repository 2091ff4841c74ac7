from pathlib import Path

import pytest
from noetl_cli.dev.home import StackHome
from noetl_cli.dev.logs import LogLine, StackLog
from noetl_core.errors import NotFound

POSTGRES = """\
2026-03-01 10:00:00.500 UTC [7] LOG:  ready
2026-03-01 10:00:02.000 UTC [7] ERROR:  no such table
    at character 15
"""
NATS = "[9] 2026/03/01 10:00:01.000000 [INF] Server is ready\n"
API = (
    '{"event": "call.done", "timestamp": "2026-03-01T10:00:01.500000Z"}\n'
    '{"event": "seen 2020-01-01 00:00:00", "timestamp": "2026-03-01T10:00:03Z"}\n'
)


@pytest.fixture
def home(tmp_path: Path) -> StackHome:
    home = StackHome(root=tmp_path)
    home.create()
    for name, text in {"postgres": POSTGRES, "nats": NATS, "api": API}.items():
        home.log_file(name).write_text(text)
    return home


def test_lines_of_all_components_come_in_the_order_of_their_times(home: StackHome) -> None:
    lines = StackLog(home).recent(10)

    assert [line.component for line in lines] == ["postgres", "nats", "api", "postgres", "postgres", "api"]
    assert lines[4].text == "    at character 15"


def test_only_the_newest_lines_are_shown(home: StackHome) -> None:
    assert [line.component for line in StackLog(home).recent(2)] == ["postgres", "api"]
    assert StackLog(home).recent(0) == []


def test_one_component_is_shown_alone(home: StackHome) -> None:
    assert StackLog(home, component="nats").recent(10) == [LogLine(component="nats", text=NATS.strip())]


def test_an_unknown_component_is_refused(home: StackHome) -> None:
    with pytest.raises(NotFound):
        StackLog(home, component="apo")


def test_following_goes_on_exactly_where_the_recent_lines_end(home: StackHome) -> None:
    def write(name: str, text: str) -> None:
        with home.log_file(name).open("a") as file:
            file.write(text)

    write("nats", "half a ")
    log = StackLog(home)
    shown = [line.text for line in log.recent(100)]
    write("nats", "line\nthe next\n")
    write("worker", "of a component that started later\n")
    followed = [line.text for line in log.follow(until=lambda: True)]

    assert "half a " not in shown
    assert followed == ["half a line", "the next", "of a component that started later"]


def test_a_log_that_was_replaced_is_read_from_its_beginning(home: StackHome) -> None:
    log = StackLog(home, component="nats")
    home.log_file("nats").rename(home.log_file("nats").with_suffix(".log.1"))
    home.log_file("nats").write_text("a new file\n")

    assert [line.text for line in log.follow(until=lambda: True)] == ["a new file"]
