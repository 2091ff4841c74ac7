"""A pool of connections to one database: how many, who waits for whom, and what is closed when."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest
from noetl_testkit.until import until
from noetl_worker.application.open_frame import FrameTask, OpenFrame
from noetl_worker.tools.postgres_sessions import KEPT_SECONDS, PostgresSessions

LIMITS = "SET statement_timeout = 1"


class Session:
    """Stands for a connection of the driver."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.is_broken = self.is_ended = self.is_slow = self.has_begun = False

    def is_closed(self) -> bool:
        return self.is_ended

    def is_in_transaction(self) -> bool:
        return self.has_begun

    def get_reset_query(self) -> str:
        return "RESET ALL;"

    async def execute(self, query: str, timeout: float | None = None) -> None:
        await asyncio.sleep(60 if self.is_slow else 0)
        if self.is_broken:
            raise asyncpg.InterfaceError("broken")
        self.asked.append(query)

    async def reset(self, *, timeout: float) -> None:
        self.has_begun = False
        self.asked.append("ROLLBACK")

    async def close(self) -> None:
        self.is_ended = True

    def terminate(self) -> None:
        self.is_ended = True


class Server:
    """Gives connections; those that it has given are remembered."""

    def __init__(self) -> None:
        self.given: list[Session] = []
        self.refuses = False

    async def connect(self) -> Session:
        await asyncio.sleep(0)
        if self.refuses:
            raise OSError("refused")
        self.given.append(Session())
        return self.given[-1]

    def sessions(self, *, max_size: int = 2, idle_seconds: float = 60.0) -> PostgresSessions:
        return PostgresSessions(self.connect, max_size=max_size, idle_seconds=idle_seconds)


async def take(sessions: PostgresSessions, *, wait_seconds: float = 5.0, settings: str = LIMITS) -> Session:
    taken: Session = await sessions.take(lambda: settings, wait_seconds=wait_seconds)
    return taken


async def give_back(sessions: PostgresSessions, session: Session, *, has_failed: bool = False) -> None:
    await sessions.give_back(session, wait_seconds=5.0, has_failed=has_failed)


async def test_a_connection_is_used_again_and_set_once_for_calls_that_are_alike() -> None:
    server = Server()
    sessions = server.sessions()
    for _ in range(3):
        await give_back(sessions, await take(sessions))
    await take(sessions, settings="SET other")

    (session,) = server.given
    assert session.asked == [LIMITS, *[f"RESET ALL;{LIMITS}"] * 3, "SET other"]


async def test_who_waits_gets_what_is_given_back_in_the_order_in_which_they_came() -> None:
    sessions, got = Server().sessions(max_size=1), list[int]()

    async def one(number: int) -> None:
        session = await take(sessions)
        got.append(number)
        await give_back(sessions, session)

    await asyncio.gather(*(one(number) for number in range(5)))

    assert got == [0, 1, 2, 3, 4]


async def test_who_waits_in_vain_or_is_cancelled_takes_no_place_away() -> None:
    server = Server()
    sessions = server.sessions(max_size=1)
    session = await take(sessions)
    with pytest.raises(TimeoutError):
        await take(sessions, wait_seconds=0.01)
    waiting = asyncio.create_task(take(sessions))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await give_back(sessions, session)

    assert await take(sessions) is session
    assert len(server.given) == 1


async def test_a_server_that_refuses_takes_no_place_away() -> None:
    server = Server()
    sessions = server.sessions(max_size=1)
    server.refuses = True
    for _ in range(2):
        with pytest.raises(OSError, match="refused"):
            await take(sessions)
    server.refuses = False

    assert await take(sessions) is server.given[0]


async def test_a_connection_that_cannot_be_reset_is_closed_and_another_takes_its_place() -> None:
    server = Server()
    sessions = server.sessions(max_size=1)
    first = await take(sessions)
    first.is_broken = True
    with pytest.raises(asyncpg.InterfaceError):
        await give_back(sessions, first)
    second = await take(sessions)
    second.is_ended = True
    await give_back(sessions, second)
    third = await take(sessions)

    assert first.is_ended
    assert len({first, second, third}) == 3


async def test_one_that_broke_while_it_was_idle_is_not_given_away() -> None:
    sessions = Server().sessions()
    first = await take(sessions)
    await give_back(sessions, first)
    first.is_ended = True

    assert await take(sessions) is not first


async def test_a_transaction_that_a_call_leaves_open_ends_before_anything_is_set() -> None:
    sessions = Server().sessions()
    session = await take(sessions)
    session.has_begun = True
    await give_back(sessions, session)

    assert session.asked == [LIMITS, "ROLLBACK", f"RESET ALL;{LIMITS}"]


async def test_what_is_cancelled_while_it_gives_back_loses_its_connection_unless_it_had_failed_before() -> None:
    server = Server()
    sessions = server.sessions()
    ended, kept = await take(sessions), await take(sessions)
    for session, has_failed in ((ended, False), (kept, True)):
        session.is_slow = True
        giving = asyncio.create_task(give_back(sessions, session, has_failed=has_failed))
        await asyncio.sleep(0.01)
        giving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await giving

    assert ended.is_ended
    assert not kept.is_ended
    sessions.terminate()
    assert kept.is_ended


async def test_connections_that_nobody_has_used_for_a_while_are_closed_and_others_stay() -> None:
    server = Server()
    sessions = server.sessions(idle_seconds=0.05)
    idle, used = await take(sessions), await take(sessions)
    await give_back(sessions, idle)
    await until(idle.is_closed)
    assert not used.is_ended
    await give_back(sessions, used)
    assert await take(sessions) is used


async def test_closing_waits_for_calls_and_lets_nobody_in() -> None:
    sessions = Server().sessions()
    idle, used = await take(sessions), await take(sessions)
    await give_back(sessions, idle)
    closing = asyncio.create_task(sessions.close())
    await asyncio.sleep(0)
    with pytest.raises(asyncpg.InterfaceError):
        await take(sessions)
    assert not closing.done()
    await give_back(sessions, used)
    await closing

    assert idle.is_ended
    assert used.is_ended


# --- connections that calls of one task leave to each other ---------------------------------------------------------


def keep(sessions: PostgresSessions, session: Session, of_task: FrameTask) -> None:
    sessions.leave(session, of_task)


async def take_for(sessions: PostgresSessions, of_task: FrameTask | None) -> Session:
    taken: Session = await sessions.take(lambda: LIMITS, wait_seconds=5.0, of_task=of_task)
    return taken


RESET = f"RESET ALL;{LIMITS}"


async def test_calls_of_one_task_of_a_frame_find_a_connection_as_they_left_it() -> None:
    server, task = Server(), FrameTask(OpenFrame(), "save")
    sessions = server.sessions()
    for _ in range(3):
        keep(sessions, await take_for(sessions, task), task)

    (session,) = server.given
    assert session.asked == [LIMITS]


async def test_one_that_is_in_use_all_the_time_is_reset_now_and_then_all_the_same() -> None:
    server, task, now = Server(), FrameTask(OpenFrame(), "save"), 0.0
    sessions = PostgresSessions(server.connect, max_size=2, idle_seconds=60.0, clock=lambda: now)
    left: list[bool] = []
    for _ in range(9):
        session = await take_for(sessions, task)
        now += KEPT_SECONDS / 3
        left.append(sessions.leave(session, task))
        if not left[-1]:
            await give_back(sessions, session)

    (session,) = server.given
    assert left == [True, True, True, True, False] + [True] * 4
    assert session.asked == [LIMITS, RESET]


@pytest.mark.parametrize("who", ["another task", "another frame", "nobody's"])
async def test_whoever_else_takes_it_gets_it_reset_and_no_further_one_is_opened(who: str) -> None:
    server, frame = Server(), OpenFrame()
    sessions = server.sessions()
    keep(sessions, await take_for(sessions, FrameTask(frame, "save")), FrameTask(frame, "save"))
    others = {
        "another task": FrameTask(frame, "log"),
        "another frame": FrameTask(OpenFrame(), "save"),
        "nobody's": None,
    }

    taken = await take_for(sessions, others[who])

    assert server.given == [taken]
    assert taken.asked == [LIMITS, RESET]


async def test_it_is_reset_when_its_frame_ends_and_when_nobody_wants_it_for_a_moment() -> None:
    server, ending, resting = Server(), OpenFrame(), OpenFrame()
    sessions = server.sessions()
    first, second = [await take_for(sessions, FrameTask(frame, "save")) for frame in (ending, resting)]
    keep(sessions, first, FrameTask(ending, "save"))
    keep(sessions, second, FrameTask(resting, "save"))
    ending.end()
    await until(lambda: RESET in first.asked)
    assert RESET not in second.asked
    await until(lambda: RESET in second.asked)

    assert {await take_for(sessions, None), await take_for(sessions, None)} == {first, second}
    assert [first.asked, second.asked] == [[LIMITS, RESET]] * 2, "as clean as they were given back"


async def test_who_waits_for_a_place_gets_a_connection_that_was_left_and_it_is_reset_for_him() -> None:
    server, task = Server(), FrameTask(OpenFrame(), "save")
    sessions = server.sessions(max_size=1)
    session = await take_for(sessions, task)
    waiting = asyncio.create_task(take_for(sessions, None))
    await asyncio.sleep(0)
    keep(sessions, session, task)
    task.frame.end()

    assert await waiting is session
    assert session.asked == [LIMITS, RESET]
    assert len(server.given) == 1


async def test_one_that_cannot_be_reset_is_closed_and_who_wanted_it_gets_another() -> None:
    server, task = Server(), FrameTask(OpenFrame(), "save")
    sessions = server.sessions(max_size=1)
    session = await take_for(sessions, task)
    keep(sessions, session, task)
    session.is_broken = True

    other = await take_for(sessions, None)

    assert session.is_ended
    assert other is not session


async def test_who_is_cancelled_while_it_is_reset_for_him_takes_no_place_away() -> None:
    server, task = Server(), FrameTask(OpenFrame(), "save")
    sessions = server.sessions(max_size=1)
    session = await take_for(sessions, task)
    keep(sessions, session, task)
    session.is_slow = True
    taking = asyncio.create_task(take_for(sessions, None))
    await asyncio.sleep(0.01)
    taking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await taking

    assert session.is_ended, "nobody knows what is left in it"
    assert await take_for(sessions, None) is not session


async def test_a_connection_that_the_server_has_closed_meanwhile_is_not_given_again() -> None:
    server, task = Server(), FrameTask(OpenFrame(), "save")
    sessions = server.sessions(max_size=1)
    session = await take_for(sessions, task)
    keep(sessions, session, task)
    session.is_ended = True

    assert await take_for(sessions, task) is not session


async def test_closing_closes_those_that_were_left_as_well() -> None:
    server, task = Server(), FrameTask(OpenFrame(), "save")
    sessions = server.sessions()
    keep(sessions, await take_for(sessions, task), task)
    await sessions.close()
    task.frame.end()
    await asyncio.sleep(0)

    assert [session.is_ended for session in server.given] == [True]
    with pytest.raises(asyncpg.InterfaceError):
        await take_for(sessions, task)


async def test_what_a_call_of_the_same_task_has_left_is_taken_without_waiting_if_it_is_set_so() -> None:
    server = Server()
    sessions, of_task = server.sessions(), FrameTask(OpenFrame(), "save")
    session = await take(sessions)
    assert sessions.take_left(of_task, LIMITS) is None
    assert sessions.leave(session, of_task)

    others = sessions.take_left(FrameTask(of_task.frame, "other"), LIMITS), sessions.take_left(of_task, "SET other")
    own = sessions.take_left(of_task, LIMITS)
    again = sessions.take_left(of_task, LIMITS)

    assert (others, own, again) == ((None, None), session, None)
    assert session.asked == [LIMITS]
    await give_back(sessions, session)
    await sessions.close()


async def test_what_was_left_is_not_taken_if_it_is_lost_or_if_others_wait_for_a_place() -> None:
    server = Server()
    sessions, of_task = server.sessions(max_size=1), FrameTask(OpenFrame(), "save")
    first = await take(sessions)
    waiting = asyncio.create_task(take(sessions))
    await asyncio.sleep(0)
    assert sessions.leave(first, of_task)
    assert sessions.take_left(of_task, LIMITS) is None, "its place is for who waits"
    second = await waiting

    assert sessions.leave(second, of_task)
    second.is_ended = True
    assert sessions.take_left(of_task, LIMITS) is None
