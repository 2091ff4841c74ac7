"""States as they are stored, kept in memory so that the next events need not load them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection

from noetl_core.fold import State


class KnownStates:
    """Of many executions, the least recently used forgotten first; losing one costs a read."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._states: OrderedDict[int, tuple[int, State]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._states)

    def get(self, execution_id: int) -> State | None:
        """The state, which is the more worth keeping for having been asked for."""
        known = self._states.get(execution_id)
        if known is None:
            return None
        self._states.move_to_end(execution_id)
        return known[1]

    def version(self, execution_id: int) -> int | None:
        """The version of the state, without any claim that it will be needed."""
        known = self._states.get(execution_id)
        return known[1].stream_version if known is not None else None

    def put(self, shard: int, state: State) -> None:
        """Keep a state that has just been stored or loaded."""
        execution_id = state.execution.execution_id
        self._states[execution_id] = (shard, state)
        self._states.move_to_end(execution_id)
        while len(self._states) > self._capacity:
            self._states.popitem(last=False)

    def forget(self, execution_id: int) -> None:
        """It is not what is stored."""
        self._states.pop(execution_id, None)

    def forget_shards(self, shards: Collection[int]) -> None:
        """Others may store these from now on."""
        for execution_id in [key for key, (shard, _) in self._states.items() if shard in shards]:
            del self._states[execution_id]
