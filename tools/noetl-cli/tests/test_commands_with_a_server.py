"""The commands against a server of the real contracts that answers from memory."""

import asyncio
import json
import signal
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn, TypeVar

import grpc
import pytest
from noetl.catalog.v1 import catalog_pb2, catalog_pb2_grpc
from noetl.event.v1 import event_pb2, event_pb2_grpc
from noetl.execution.v1 import execution_pb2, execution_pb2_grpc
from noetl_cli.__main__ import run
from noetl_cli.shown.executions import view_of
from noetl_contracts.mapping import catalog as catalog_mapping
from noetl_contracts.mapping import events as event_mapping
from noetl_contracts.mapping import executions as execution_mapping
from noetl_contracts.status import to_grpc_status
from noetl_core.children.events import ChildStarted
from noetl_core.errors import NoetlError, NotAuthenticated, NotFound, Unavailable
from noetl_core.executions.events import ExecutionCancelled, PlaybookFailed
from noetl_core.fold import empty, fold_all
from noetl_core.ports.event_log import Scope
from noetl_testkit.histories import EXECUTION, History, initialized, two_steps
from noetl_testkit.memory.catalog import InMemoryCatalog

SCOPE = Scope(tenant_id="default", organization_id="default")
TOKEN = "the-token"
HELLO = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: hello, path: examples/hello}
workflow:
- step: first
  tool: {kind: noop}
"""
BROKEN = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: hello}
workflow:
- step: first
  tool: {kind: pyton}
  next: {arcs: [{step: secnd}]}
- step: second
  tool: {kind: noop}
"""
Context = grpc.ServicerContext
Answer = TypeVar("Answer")


class FakeApi:
    """One execution whose history is given; the watch can be made to break, or to hang before the end."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.catalog = InMemoryCatalog()
        self.executed: list[execution_pb2.ExecuteRequest] = []
        self.cancelled: list[execution_pb2.CancelRequest] = []
        self.listed: list[execution_pb2.ListRequest] = []
        self.watched_from: list[int] = []
        self.breaks_after: list[int] = []
        self.hangs_after: int | None = None
        self.is_hanging = threading.Event()

    def execution(self) -> execution_pb2.Execution:
        return execution_mapping.execution_message(view_of(fold_all(empty(EXECUTION), self.history.recorded)))


class FakeCatalog(catalog_pb2_grpc.CatalogServiceServicer):
    def __init__(self, api: FakeApi) -> None:
        self._catalog = api.catalog

    def Register(self, request: catalog_pb2.RegisterRequest, context: Context) -> catalog_pb2.RegisterResponse:  # noqa: N802
        registered = answer(context, self._catalog.register(SCOPE, request.content))
        return catalog_mapping.registered_message(registered)

    def Get(self, request: catalog_pb2.GetRequest, context: Context) -> catalog_pb2.GetResponse:  # noqa: N802
        source = answer(context, self._catalog.get(SCOPE, path=request.path, version=request.version))
        return catalog_pb2.GetResponse(entry=catalog_mapping.entry_message(source.entry), content=source.content)

    def List(self, request: catalog_pb2.ListRequest, context: Context) -> catalog_pb2.ListResponse:  # noqa: N802
        page = answer(context, self._catalog.list(SCOPE, page_size=request.page_size))
        return catalog_pb2.ListResponse(entries=[catalog_mapping.entry_message(one) for one in page.entries])

    def ListVersions(  # noqa: N802
        self, request: catalog_pb2.ListVersionsRequest, context: Context
    ) -> catalog_pb2.ListVersionsResponse:
        page = answer(context, self._catalog.versions(SCOPE, request.path, page_size=request.page_size))
        return catalog_pb2.ListVersionsResponse(entries=[catalog_mapping.entry_message(one) for one in page.entries])


class FakeExecutions(execution_pb2_grpc.ExecutionServiceServicer):
    def __init__(self, api: FakeApi) -> None:
        self._api = api

    def Execute(self, request: execution_pb2.ExecuteRequest, context: Context) -> execution_pb2.ExecuteResponse:  # noqa: N802
        authenticate(context)
        self._api.executed.append(request)
        return execution_pb2.ExecuteResponse(
            execution_id=str(EXECUTION), path=request.path, version=request.version, created=True
        )

    def Get(self, request: execution_pb2.GetRequest, context: Context) -> execution_pb2.GetResponse:  # noqa: N802
        authenticate(context)
        if request.execution_id != str(EXECUTION):
            refuse(context, NotFound("execution", request.execution_id, code="execution.not_found"))
        return execution_pb2.GetResponse(execution=self._api.execution())

    def List(self, request: execution_pb2.ListRequest, context: Context) -> execution_pb2.ListResponse:  # noqa: N802
        self._api.listed.append(request)
        return execution_pb2.ListResponse(executions=[self._api.execution()], next_page_token="more")

    def Cancel(self, request: execution_pb2.CancelRequest, context: Context) -> execution_pb2.CancelResponse:  # noqa: N802
        self._api.cancelled.append(request)
        return execution_pb2.CancelResponse(stream_version=7, cancelled_descendants=0 if request.no_cascade else 3)


class FakeEvents(event_pb2_grpc.EventServiceServicer):
    def __init__(self, api: FakeApi) -> None:
        self._api = api

    def Append(self, request: event_pb2.AppendRequest, context: Context) -> event_pb2.AppendResponse:  # noqa: N802
        raise NotImplementedError

    def ListHeads(self, request: event_pb2.ListHeadsRequest, context: Context) -> event_pb2.ListHeadsResponse:  # noqa: N802
        raise NotImplementedError

    def ReadAll(self, request: event_pb2.ReadAllRequest, context: Context) -> Iterator[event_pb2.ReadAllResponse]:  # noqa: N802
        raise NotImplementedError

    def Read(self, request: event_pb2.ReadRequest, context: Context) -> event_pb2.ReadResponse:  # noqa: N802
        stored = self._api.history.stored
        events = stored[request.from_version - 1 :][: request.page_size]
        return event_pb2.ReadResponse(
            events=[event_mapping.stored_message(one) for one in events], head_version=len(stored), terminal=True
        )

    def Watch(self, request: event_pb2.WatchRequest, context: Context) -> Iterator[event_pb2.WatchResponse]:  # noqa: N802
        api = self._api
        api.watched_from.append(request.from_version)
        break_after = api.breaks_after.pop(0) if api.breaks_after else None
        for event in api.history.stored[request.from_version - 1 :]:
            last = event is api.history.stored[-1]
            yield event_pb2.WatchResponse(events=[event_mapping.stored_message(event)], terminal=last)
            if event.stream_version == break_after:
                refuse(context, Unavailable("the server is restarted"))
            if event.stream_version == api.hangs_after:
                ended = threading.Event()
                context.add_callback(ended.set)
                api.is_hanging.set()
                ended.wait()
                return


def answer(context: Context, work: Coroutine[None, None, Answer]) -> Answer:
    authenticate(context)
    try:
        return asyncio.run(work)
    except NoetlError as exc:
        refuse(context, exc)


def authenticate(context: Context) -> None:
    if dict(context.invocation_metadata()).get("authorization") != f"Bearer {TOKEN}":
        refuse(context, NotAuthenticated("nobody has this token"))


def refuse(context: Context, error: NoetlError) -> NoReturn:
    context.abort_with_status(to_grpc_status(error))
    raise AssertionError("abort raises")


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeApi]:
    fake = FakeApi(two_steps(History()))
    server = grpc.server(ThreadPoolExecutor(8))
    catalog_pb2_grpc.add_CatalogServiceServicer_to_server(FakeCatalog(fake), server)
    execution_pb2_grpc.add_ExecutionServiceServicer_to_server(FakeExecutions(fake), server)  # type: ignore[abstract] # has what these commands ask for
    event_pb2_grpc.add_EventServiceServicer_to_server(FakeEvents(fake), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    monkeypatch.setenv("NOETL_API_ADDRESS", f"127.0.0.1:{port}")
    monkeypatch.setenv("NOETL_TOKEN", TOKEN)
    yield fake
    server.stop(None).wait()


@pytest.fixture
def hello(tmp_path: Path) -> str:
    file = tmp_path / "hello.yaml"
    file.write_text(HELLO)
    return str(file)


@pytest.fixture
def broken(tmp_path: Path) -> str:
    file = tmp_path / "broken.yaml"
    file.write_text(BROKEN)
    return str(file)


Output = pytest.CaptureFixture[str]


def test_a_playbook_is_registered_started_and_followed_to_its_end(api: FakeApi, hello: str, capsys: Output) -> None:
    assert run(["run", hello, "--set", "who=Ada"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "examples/hello: registered as version 1"
    assert lines[1] == f"execution {EXECUTION} started: examples/hello version 1"
    assert lines[-3] == "COMPLETED in 4.0 s"
    assert f"noetl events {EXECUTION}" in lines[-1]
    (request,) = api.executed
    assert (request.path, request.version, json.loads(request.payload_json)) == ("examples/hello", 1, {"who": "Ada"})
    assert request.start_key


def test_the_payload_comes_from_a_file_and_settings_go_over_it(
    api: FakeApi, hello: str, tmp_path: Path, capsys: Output
) -> None:
    (tmp_path / "p.json").write_text('{"who": "world", "amount": 1}')

    assert run(["run", hello, "--payload", str(tmp_path / "p.json"), "--set", "amount=2", "--start-key", "k"]) == 0

    assert json.loads(api.executed[0].payload_json) == {"who": "world", "amount": 2}
    assert api.executed[0].start_key == "k"


def test_json_is_one_document_about_the_end(api: FakeApi, hello: str, capsys: Output) -> None:
    assert run(["run", hello, "-o", "json"]) == 0

    document = json.loads(capsys.readouterr().out)
    assert document["execution_id"] == str(EXECUTION)
    assert (document["status"], document["error"], document["created"]) == ("COMPLETED", None, True)
    assert document["stream_version"] == 18
    assert [step["step"] for step in document["steps"]] == ["first", "second"]


def test_following_in_json_is_a_line_per_event_and_then_the_end(api: FakeApi, hello: str, capsys: Output) -> None:
    assert run(["run", hello, "--follow", "-o", "json"]) == 0

    *events, end = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [event["stream_version"] for event in events] == list(range(1, 19))
    assert events[0]["event_type"] == "playbook.initialized"
    assert end["status"] == "COMPLETED"


def test_without_following_it_returns_with_the_id(api: FakeApi, hello: str, capsys: Output) -> None:
    assert run(["run", hello, "--no-follow", "-o", "json"]) == 0

    document = json.loads(capsys.readouterr().out)
    assert document == {"execution_id": str(EXECUTION), "path": "examples/hello", "version": 1, "created": True}
    assert api.watched_from == []


def test_a_playbook_of_the_catalog_can_be_started_by_path_and_version(api: FakeApi, capsys: Output) -> None:
    assert run(["run", "--path", "examples/hello", "--version", "4", "--no-follow"]) == 0

    assert (api.executed[0].path, api.executed[0].version) == ("examples/hello", 4)


def test_a_broken_playbook_is_refused_with_every_line_and_nothing_is_started(
    api: FakeApi, broken: str, capsys: Output
) -> None:
    assert run(["run", broken]) == 2

    shown = capsys.readouterr()
    assert f"{broken}:6:10: error playbook.unknown_tool: there is no tool 'pyton'" in shown.err
    assert f"{broken}:7:" in shown.err
    assert "error playbook.unknown_step: there is no step 'secnd'" in shown.err
    assert "did you mean 'second'?" in shown.err
    assert (shown.out, api.executed) == ("", [])


def test_a_broken_playbook_in_json_is_an_error_document(api: FakeApi, broken: str, capsys: Output) -> None:
    assert run(["catalog", "register", broken, "-o", "json"]) == 2

    error = json.loads(capsys.readouterr().out)["error"]
    assert error["code"] == "playbook.invalid"
    assert [(problem["line"], problem["code"]) for problem in error["problems"]] == [
        (6, "playbook.unknown_tool"),
        (7, "playbook.unknown_step"),
    ]


def test_an_execution_that_fails_or_is_cancelled_has_its_exit_code(api: FakeApi, hello: str, capsys: Output) -> None:
    error = {"step": "load", "code": "PY_ValueError", "message": "no such file"}
    api.history = History().add(initialized(), PlaybookFailed(error=error))
    assert run(["run", hello]) == 1
    assert "FAILED" in (out := capsys.readouterr().out)
    assert "step 'load': no such file (PY_ValueError)" in out
    assert run(["status", str(EXECUTION)]) == 1

    api.history = History().add(initialized(), ExecutionCancelled(reason="enough", cancelled_by="ada"))
    assert run(["run", hello]) == 4
    assert run(["status", str(EXECUTION)]) == 4
    assert run(["events", str(EXECUTION), "--follow"]) == 4
    assert "reason=enough cancelled_by=ada" in capsys.readouterr().out


def test_a_server_that_goes_away_in_the_middle_is_waited_for(api: FakeApi, hello: str, capsys: Output) -> None:
    api.breaks_after = [4, 11]

    assert run(["run", hello]) == 0

    assert api.watched_from == [1, 5, 12]
    assert "the server is away, waiting for it: the server is restarted" in capsys.readouterr().out


def test_waiting_ends_with_the_timeout_and_says_that_the_execution_goes_on(
    api: FakeApi, hello: str, capsys: Output
) -> None:
    api.hangs_after = 6

    assert run(["run", hello, "--timeout", "0.5"]) == 5
    assert f"execution {EXECUTION} has not ended within 0.5 s; it goes on" in capsys.readouterr().err
    assert run(["events", str(EXECUTION), "--follow", "--timeout", "0.5"]) == 5


def test_ctrl_c_detaches_and_cancels_nothing(api: FakeApi, hello: str, capsys: Output) -> None:
    api.hangs_after = 6

    def interrupt() -> None:
        api.is_hanging.wait()
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()

    assert run(["run", hello]) == 130
    assert f"detached; it goes on, end it with: noetl cancel {EXECUTION}" in capsys.readouterr().err
    assert api.cancelled == []


def test_events_are_shown_by_range_and_say_where_to_go_on(api: FakeApi, capsys: Output) -> None:
    assert run(["events", str(EXECUTION), "--from", "5", "--limit", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[2] for line in lines[:2]] == ["command.claimed", "command.started"]
    assert lines[2] == "there are more, up to 18: --from 7"

    assert run(["events", str(EXECUTION), "-o", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["head_version"], document["terminal"], len(document["events"])) == (18, True, 18)
    assert isinstance(document["events"][0]["event_id"], str)


def test_one_execution_and_all_of_them_are_shown(api: FakeApi, capsys: Output) -> None:
    assert run(["status", str(EXECUTION)]) == 0
    out = capsys.readouterr().out
    assert "playbook   examples/hello version 3" in out
    assert out.index("first") < out.index("second")

    assert run(["list", "--status", "completed"]) == 0
    assert "--page-token more" in capsys.readouterr().out
    assert run(["list", "-o", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["executions"][0]["execution_id"] == str(EXECUTION)
    assert document["next_page_token"] == "more"


def test_what_does_not_exist_has_an_exit_code_of_its_own(api: FakeApi, capsys: Output) -> None:
    assert run(["status", "5"]) == 3
    assert "execution '5' does not exist (execution.not_found)" in capsys.readouterr().err
    assert run(["catalog", "get", "no/such"]) == 3
    assert run(["catalog", "get", "no/such", "-o", "json"]) == 3
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "catalog.not_found"


def test_a_wrong_token_is_refused_with_what_to_do(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    monkeypatch.setenv("NOETL_TOKEN", "another")

    assert run(["status", str(EXECUTION)]) == 1
    assert "NOETL_TOKEN" in capsys.readouterr().err


def test_cancelling_says_so(api: FakeApi, capsys: Output) -> None:
    assert run(["cancel", str(EXECUTION), "--reason", "enough", "-o", "json"]) == 0

    assert json.loads(capsys.readouterr().out)["status"] == "CANCELLED"
    assert api.cancelled[0].reason == "enough"


def test_cancelling_ends_the_family_unless_told_otherwise(api: FakeApi, capsys: Output) -> None:
    assert run(["cancel", str(EXECUTION)]) == 0
    assert capsys.readouterr().out == f"execution {EXECUTION} is cancelled, and 3 that it had started\n"
    assert run(["cancel", str(EXECUTION), "--no-cascade"]) == 0
    assert capsys.readouterr().out == f"execution {EXECUTION} is cancelled\n"

    assert [request.no_cascade for request in api.cancelled] == [False, True]


def test_parents_and_children_are_shown(api: FakeApi, capsys: Output) -> None:
    api.history = History(parent_execution_id=77).add(initialized(), ChildStarted(child_execution_id="9", path="x"))

    assert run(["status", str(EXECUTION)]) == 0
    out = capsys.readouterr().out
    assert "parent     77" in out
    assert "children   1" in out
    assert f"there are more: noetl list --parent {EXECUTION}" in out
    assert run(["status", str(EXECUTION), "-o", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["parent_execution_id"], document["child_count"], len(document["children"])) == ("77", 1, 1)
    assert run(["list", "--parent", str(EXECUTION)]) == 0
    assert [request.parent_execution_id for request in api.listed] == [str(EXECUTION)] * 3


def test_a_registered_playbook_is_listed_and_comes_back_as_it_was_written(
    api: FakeApi, hello: str, capsys: Output
) -> None:
    assert run(["catalog", "register", hello]) == 0
    assert run(["catalog", "register", hello]) == 0
    assert "unchanged since version 1" in capsys.readouterr().out

    assert run(["catalog", "list"]) == 0
    assert "examples/hello" in capsys.readouterr().out
    assert run(["catalog", "get", "examples/hello"]) == 0
    assert capsys.readouterr().out == HELLO


@pytest.mark.parametrize(
    "arguments",
    [
        ["run"],
        ["run", "--version", "2"],
        ["run", "no-such-file.yaml"],
        ["status", "not-a-number"],
        ["status", "0"],
        ["no-such-command"],
        ["list", "--status", "SLEEPING"],
    ],
)
def test_wrong_usage_is_exit_code_2(arguments: list[str], capsys: Output) -> None:
    assert run(arguments) == 2
    assert "Usage:" in capsys.readouterr().err


def test_a_server_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch, capsys: Output) -> None:
    monkeypatch.setenv("NOETL_API_ADDRESS", "127.0.0.1:1")

    assert run(["status", "5"]) == 5
    assert "while talking to 127.0.0.1:1" in capsys.readouterr().err


def test_a_step_without_a_payload_has_no_result_to_show(api: FakeApi, capsys: Output) -> None:
    assert run(["result", str(EXECUTION)]) == 0
    assert capsys.readouterr().out.splitlines() == ["first: null", "second: null"]
