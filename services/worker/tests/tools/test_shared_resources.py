"""What calls share: opened once, bounded, closed when nobody uses it, and never left open."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from noetl_core.errors import Overloaded, Unavailable
from noetl_testkit.until import until
from noetl_worker.tools.shared_resources import SharedResources, SharingLimits


class Wire:
    """A connection that is only pretended."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_open = True

    async def close(self) -> None:
        self.is_open = False


class Exchange:
    """Opens wires, and remembers them."""

    def __init__(self) -> None:
        self.opened: list[Wire] = []
        self.may_open = asyncio.Event()
        self.may_open.set()

    def opener(self, name: str) -> Callable[[], Awaitable[Wire]]:
        async def open_one() -> Wire:
            await self.may_open.wait()
            self.opened.append(Wire(name))
            return self.opened[-1]

        return open_one


def shared(*, max_open: int = 3, idle_seconds: float = 60.0) -> SharedResources[str, Wire]:
    limits = SharingLimits(max_open=max_open, idle_seconds=idle_seconds)
    return SharedResources(limits=limits, close=Wire.close, is_usable=lambda wire: wire.is_open)


async def test_users_of_one_key_share_what_is_opened_once() -> None:
    exchange = Exchange()
    exchange.may_open.clear()
    async with shared() as wires:

        async def name_of_wire() -> int:
            async with wires.use("a", exchange.opener("a")) as wire:
                return id(wire)

        users = [asyncio.create_task(name_of_wire()) for _ in range(5)]
        await asyncio.sleep(0)
        exchange.may_open.set()

        assert len(set(await asyncio.gather(*users))) == 1
        assert len(exchange.opened) == 1

    assert not exchange.opened[0].is_open


async def test_what_nobody_uses_is_closed_after_a_while() -> None:
    exchange = Exchange()
    async with shared(idle_seconds=0.0) as wires:
        async with wires.use("a", exchange.opener("a")) as wire:
            await wires.upkeep("wires").once()
            assert wire.is_open
        await wires.upkeep("wires").once()
        await until(lambda: not exchange.opened[0].is_open)

        assert wires.open_count == 0


async def test_what_is_in_use_is_not_closed_for_being_old() -> None:
    exchange = Exchange()
    async with shared(idle_seconds=0.0) as wires, wires.use("a", exchange.opener("a")) as wire:
        async with wires.use("b", exchange.opener("b")):
            pass
        await wires.sweep()
        await until(lambda: wires.open_count == 1)

        assert wire.is_open


async def test_the_limit_makes_room_by_closing_the_least_used() -> None:
    exchange = Exchange()
    async with shared(max_open=2) as wires:
        for name in ("a", "b", "c"):
            async with wires.use(name, exchange.opener(name)):
                pass
        await until(lambda: not exchange.opened[0].is_open)

        assert [wire.is_open for wire in exchange.opened] == [False, True, True]


async def test_a_limit_that_is_in_use_refuses() -> None:
    exchange = Exchange()
    async with (
        shared(max_open=1) as wires,
        wires.use("a", exchange.opener("a")),
    ):
        with pytest.raises(Overloaded):
            async with wires.use("b", exchange.opener("b")):
                pass


async def test_one_that_broke_is_replaced() -> None:
    exchange = Exchange()
    async with shared() as wires:
        async with wires.use("a", exchange.opener("a")) as wire:
            wire.is_open = False
        async with wires.use("a", exchange.opener("a")) as wire:
            assert wire.is_open


async def test_a_failure_to_open_is_told_and_not_kept() -> None:
    async def refuse() -> Wire:
        raise ConnectionRefusedError

    exchange = Exchange()
    async with shared() as wires:
        with pytest.raises(ConnectionRefusedError):
            async with wires.use("a", refuse):
                pass
        async with wires.use("a", exchange.opener("a")) as wire:
            assert wire.is_open


async def test_a_user_who_gives_up_does_not_spoil_it_for_the_others() -> None:
    exchange = Exchange()
    exchange.may_open.clear()
    async with shared() as wires:

        async def use() -> bool:
            async with wires.use("a", exchange.opener("a")) as wire:
                return wire.is_open

        impatient, patient = asyncio.create_task(use()), asyncio.create_task(use())
        await asyncio.sleep(0)
        impatient.cancel()
        await asyncio.sleep(0)
        exchange.may_open.set()

        assert await patient
        assert impatient.cancelled()


async def test_closing_ends_also_what_is_only_being_opened() -> None:
    exchange = Exchange()
    exchange.may_open.clear()
    wires = shared()

    async def use() -> None:
        async with wires.use("a", exchange.opener("a")):
            raise AssertionError("it was never opened")

    async with wires:
        waiting = asyncio.create_task(use())
        await asyncio.sleep(0)

    with pytest.raises(Unavailable):
        await waiting
    with pytest.raises(Unavailable):
        async with wires.use("a", exchange.opener("a")):
            pass
