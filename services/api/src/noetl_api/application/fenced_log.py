"""The log for what an elected service asks api to do: nothing is appended once its lease is over."""

from __future__ import annotations

from noetl_core.append import Appended, AppendRequest, Fence
from noetl_core.errors import NotPermitted
from noetl_core.ports.event_log import EventLog
from noetl_core.values import replace
from noetl_servicekit.callers import Caller, Role


class FencedLog:
    """Port `EventLog`; every append is asked for under one fence."""

    def __init__(self, log: EventLog, asked_by: Fence) -> None:
        self.read = log.read
        self.moved_heads = log.moved_heads
        self._log = log
        self._asked_by = asked_by

    async def append(self, request: AppendRequest) -> tuple[Appended, ...]:
        """Append all of the request or nothing; `Fenced` once the lease is over."""
        return await self._log.append(replace(request, asked_by=self._asked_by))


def fenced_log(log: EventLog, caller: Caller, fence: Fence | None) -> EventLog:
    """The log, under the fence that the caller gave, if any."""
    if fence is None:
        return log
    if not caller.may(Role.SERVICE):
        raise NotPermitted("fences are for services")
    return FencedLog(log, fence)
