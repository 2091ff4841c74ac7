"""What a worker and its Python children say to each other: JSON messages, each after its length."""

import struct
from typing import Literal, TypedDict

LENGTH = struct.Struct("!I")
"""Every message is preceded by its length in bytes."""


class ChildSettings(TypedDict):
    """What the worker tells a child at its start, as the only argument of its command line."""

    control_fd: int
    liveness_fd: int
    worker_pid: int
    address_space_bytes: int | None


class Request(TypedDict):
    """One call. Its answer is an `AnswerHead`, a line feed, and the JSON of the data or the `Failure`."""

    id: int
    source: str
    inputs: dict[str, object]
    context: dict[str, object]
    libs: dict[str, object]
    max_result_bytes: int


class AnswerHead(TypedDict):
    """What the worker needs to know about the child besides the outcome."""

    id: int
    outcome: Literal["data", "error"]
    retire: str | None
    rss_bytes: int


class Failure(TypedDict):
    """The error of an outcome, as it crosses from the child."""

    kind: str
    code: str
    retryable: bool
    message: str
    traceback: str
