"""States that come in pages: whole, and of one history."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import grpc.aio
import pytest
from noetl.replay.v1 import replay_pb2 as pb
from noetl.replay.v1 import replay_pb2_grpc as pb_grpc
from noetl_contracts.channel import open_channel
from noetl_contracts.clients.replay import ReplayClient
from noetl_core.canonical import encode
from noetl_core.errors import Conflict
from noetl_core.replay.points import Point
from noetl_core.surfaces.shapes import Surface


class Pages(pb_grpc.ReplayServiceServicer):
    """Answers with one after the other."""

    def __init__(self) -> None:
        self.pages: Sequence[pb.GetStateResponse] = ()

    async def GetState(  # noqa: N802 - named by the contract
        self,
        request: pb.GetStateRequest,
        context: grpc.aio.ServicerContext[pb.GetStateRequest, pb.GetStateResponse],
    ) -> pb.GetStateResponse:
        return self.pages[int(request.page_token or 0)]


def page(number: int, *, of: int, checksum: str = "a", event_checksum: str = "e") -> pb.GetStateResponse:
    row = pb.ReplayedRow(surface=str(Surface.COMMANDS), key=str(number), row=encode({"number": number}))
    return pb.GetStateResponse(
        execution_id="7",
        checksum=checksum,
        event_checksum=event_checksum,
        rows=[row],
        next_page_token=str(number + 1) if number + 1 < of else "",
    )


@pytest.fixture
def served() -> Pages:
    return Pages()


@pytest.fixture
async def client(served: Pages) -> AsyncIterator[ReplayClient]:
    server = grpc.aio.server()
    pb_grpc.add_ReplayServiceServicer_to_server(served, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with open_channel(f"127.0.0.1:{port}", token=None) as channel:
        yield ReplayClient(channel)
    await server.stop(None)


async def test_all_pages_are_one_state(served: Pages, client: ReplayClient) -> None:
    served.pages = [page(number, of=3) for number in range(3)]

    state = await client.state(None, 7, Point())

    assert state.rows[Surface.COMMANDS] == {str(number): {"number": number} for number in range(3)}


@pytest.mark.parametrize("other", [{"checksum": "b"}, {"event_checksum": "f"}])
async def test_pages_of_several_histories_are_no_state(
    served: Pages, client: ReplayClient, other: dict[str, str]
) -> None:
    served.pages = [page(0, of=3), page(1, of=3, **other), page(2, of=3)]

    with pytest.raises(Conflict) as refusal:
        await client.state(None, 7, Point())

    assert refusal.value.retryable
