"""What a start under a parent means for both: how deep the child stands, and what the parent's log says."""

from __future__ import annotations

from noetl_core.append import StreamAppend
from noetl_core.children.events import ChildStarted
from noetl_core.children.state import MAX_DEPTH, StartingCall
from noetl_core.envelope import Envelope
from noetl_core.errors import InvalidInput, TooDeep
from noetl_core.events import to_draft


def depth_below(parent: Envelope) -> int:
    """The depth of a child, from the parent's first event; raises `TooDeep`."""
    above = parent.meta.get("depth", 0)
    depth = (above if isinstance(above, int) else 0) + 1
    if depth > MAX_DEPTH:
        raise TooDeep(f"at most {MAX_DEPTH} executions may stand above another", depth=str(depth))
    return depth


def check_call(call: StartingCall) -> None:
    """A call says which one it is."""
    if not call.call_id or not call.command_id or not call.step:
        raise InvalidInput("a call that starts a child names itself, its command and its step")


def told_to_parent(parent_id: int, child_id: int, path: str, call: StartingCall | None, *, trace: str) -> StreamAppend:
    """What the parent's log says about the child; refused there if the parent has ended."""
    started = ChildStarted(
        child_execution_id=str(child_id),
        path=path,
        step=call.step if call else "",
        command_id=call.command_id if call else "",
        call_id=call.call_id if call else "",
        waits=call.waits if call else False,
    )
    draft = to_draft(started, idempotency_key=f"child/{child_id}", trace=trace)
    return StreamAppend(execution_id=parent_id, drafts=(draft,))
