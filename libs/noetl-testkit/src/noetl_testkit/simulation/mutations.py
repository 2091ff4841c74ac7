"""Guards taken away one at a time, to see that the simulation would notice: each is what a careless change could do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest import mock

from noetl_core import append, numbering
from noetl_core.events import is_allowed_after_end, is_terminal
from noetl_core.journal import Settled
from noetl_core.routing_snapshots import open_routing
from noetl_core.values import replace as with_values
from noetl_planner.application import routing_snapshots
from noetl_planner.entrypoints.head_sweep import HeadSweep
from noetl_projector.application.compare_heads import CompareHeads
from noetl_reaper.application.election import ROLE as ELECTED


@contextmanager
def without_fence() -> Iterator[None]:
    """Whoever once owned a shard may write to it for ever."""
    with _unfenced(lambda fence: fence.role != ELECTED):
        yield


@contextmanager
def without_fence_of_reapers() -> Iterator[None]:
    """Whoever was once elected may have things done for ever."""
    with _unfenced(lambda fence: fence.role == ELECTED):
        yield


@contextmanager
def _unfenced(is_open: Callable[[append.Fence], bool]) -> Iterator[None]:
    check = numbering._check_fence

    def careless(fence: append.Fence, view: append.LogView) -> None:
        if not is_open(fence):
            check(fence, view)

    with mock.patch.object(numbering, "_check_fence", careless):
        yield


@contextmanager
def without_idempotency_keys() -> Iterator[None]:
    """What is sent again happens again."""
    with (
        mock.patch.object(numbering, "_duplicate_of", lambda draft, keys: None),
        mock.patch.object(numbering, "_first_start", lambda request, start, overlay: None),
    ):
        yield


@contextmanager
def without_version_check() -> Iterator[None]:
    """Nobody minds what happened since he looked."""
    number_stream = numbering._number_stream

    def careless(request: Any, stream: Any, overlay: Any) -> Any:
        drafts = tuple(
            one._replace(draft=with_values(one.draft, expected_aggregate_version=None)) for one in stream.drafts
        )
        asked = with_values(stream.append, expected_stream_version=None)
        return number_stream(request, stream._replace(append=asked, drafts=drafts), overlay)

    with mock.patch.object(numbering, "_number_stream", careless):
        yield


@contextmanager
def without_head_comparison() -> Iterator[None]:
    """What the bus loses is lost."""

    async def look_at_nothing(self: Any, **options: Any) -> None:
        return None

    with (
        mock.patch.object(HeadSweep, "__call__", look_at_nothing),
        mock.patch.object(CompareHeads, "__call__", look_at_nothing),
        mock.patch.object(CompareHeads, "has_gained", False),
    ):
        yield


@contextmanager
def without_shared_end() -> Iterator[None]:
    """Each way to end has a key of its own, so that none keeps the others out."""
    prepare = append._prepare_draft

    def apart(spelling: Any, draft: Any, event_id: int, now: Any) -> Any:
        prepared = prepare(spelling, draft, event_id, now)
        if draft.idempotency_key != append.END_KEY:
            return prepared
        return prepared._replace(draft=with_values(draft, idempotency_key=f"{append.END_KEY}/{draft.event_type}"))

    with (
        mock.patch.object(append, "_prepare_draft", apart),
        mock.patch.object(numbering, "is_allowed_after_end", _ends_or_follows),
    ):
        yield


@contextmanager
def without_what_runs_in_snapshots() -> Iterator[None]:
    """Whoever takes over from a snapshot knows of no command."""

    def careless(*args: Any, **options: Any) -> Any:
        settled = open_routing(*args, **options)
        if not isinstance(settled, Settled):
            return settled
        return with_values(settled, state=with_values(settled.state, commands={}))

    with mock.patch.object(routing_snapshots, "open_routing", careless):
        yield


def _ends_or_follows(event_type: str) -> bool:
    return is_terminal(event_type) or is_allowed_after_end(event_type)


MUTATIONS: Mapping[str, Callable[[], Any]] = {
    "fence": without_fence,
    "reaper's fence": without_fence_of_reapers,
    "idempotency key": without_idempotency_keys,
    "version check": without_version_check,
    "head comparison": without_head_comparison,
    "shared end key": without_shared_end,
    "state of snapshots": without_what_runs_in_snapshots,
}
