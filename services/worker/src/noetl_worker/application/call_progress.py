"""How far long calls are, as those say who run them: told with heartbeats, so that followers of an execution see it."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from noetl_core.canonical import JsonObject
from noetl_core.ports.spark import SparkProgress, SparkWork

MAX_KEPT: Final = 200
"""Steps whose progress nobody has asked for yet: those that run elsewhere than in our own slots."""

Place = tuple[int, str]
"""An execution and a step of it."""


class CallProgress:
    """The last word of each call, until it is told."""

    def __init__(self) -> None:
        self._news: OrderedDict[Place, JsonObject] = OrderedDict()

    def spark(self, call: SparkWork, progress: SparkProgress) -> None:
        """Spark's own count of stages and tasks."""
        place = int(call.execution_id), call.step
        self._news[place] = {
            "engine": "spark",
            "stages_done": progress.stages_done,
            "stages": progress.stages,
            "tasks_done": progress.tasks_done,
            "tasks": progress.tasks,
        }
        self._news.move_to_end(place)
        if len(self._news) > MAX_KEPT:
            self._news.popitem(last=False)

    def has_news(self, place: Place) -> bool:
        """Whether a call has got further than was told."""
        return place in self._news

    def take(self, place: Place) -> JsonObject | None:
        """What is new of a call, once."""
        return self._news.pop(place, None)
