"""Scripts from the playbook, from files and from servers; and from nowhere else."""

import sys
from collections.abc import AsyncIterator, Mapping
from io import BytesIO
from pathlib import Path

import pytest
from noetl_core.canonical import JsonValue
from noetl_servicekit.env import Address
from noetl_servicekit.http_server import serve_http
from noetl_testkit.memory.tool_credentials import InMemoryToolCredentials
from noetl_worker.application.tool_call import ToolCall
from noetl_worker.tools.call_failed import CallFailed
from noetl_worker.tools.http_clients import HttpClients
from noetl_worker.tools.python import PythonTool
from noetl_worker.tools.python_pool import PoolLimits, PythonPool
from noetl_worker.tools.script_source import ScriptLimits, ScriptSources
from noetl_worker.tools.tool_config import ToolConfig
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

CODE = "result = {{ n }} * 2"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "outside.py").write_text("result = 'outside'")
    root = tmp_path / "scripts"
    (root / "sub").mkdir(parents=True)
    (root / "sub" / "double.py").write_text(CODE)
    (root / "link.py").symlink_to("sub/double.py")
    (root / "escape.py").symlink_to("../outside.py")
    (root / "binary.py").write_bytes(b"\xff\xfe")
    (root / "large.py").write_text("#" * 2000)
    return root


@pytest.fixture
async def clients() -> AsyncIterator[HttpClients]:
    async with HttpClients() as clients:
        yield clients


def sources(clients: HttpClients, root: Path | None = None, *, enabled: bool = True) -> ScriptSources:
    credentials = InMemoryToolCredentials()
    credentials.add("token", "bearer", {"token": "let-me-in-please"})
    limits = ScriptLimits(root=root, enabled=enabled, max_bytes=1000)
    return ScriptSources(limits=limits, clients=clients, credentials=credentials)


def config(script: JsonValue, **names: object) -> ToolConfig:
    return ToolConfig(call(script, **names))


def call(script: JsonValue, **names: object) -> ToolCall:
    return ToolCall(
        tenant_id="default",
        organization_id="default",
        execution_id=1,
        step="s",
        kind="python",
        config={"script": script, "code": "result = 'code'"},
        names=names,
        timeout_seconds=60,
    )


def file(uri: str) -> Mapping[str, JsonValue]:
    return {"uri": uri, "source": {"type": "file"}}


async def refusal(scripts: ScriptSources, script: JsonValue) -> str:
    with pytest.raises(CallFailed) as failure:
        await scripts.load(config(script))
    assert failure.value.outcome.error is not None
    return failure.value.outcome.error.code


@pytest.mark.parametrize(
    "script",
    [
        CODE,
        {"uri": CODE, "source": {"type": "inline"}},
        {"code": CODE},
        {"source": {"type": "inline", "code": CODE}},
    ],
)
async def test_code_of_the_playbook_comes_as_it_is_written(clients: HttpClients, script: JsonValue) -> None:
    assert await sources(clients).load(config(script, n=1)) == CODE


@pytest.mark.parametrize("uri", ["sub/double.py", "./sub/double.py", "link.py", "sub/../link.py", "{{ name }}"])
async def test_files_are_read_below_the_directory(clients: HttpClients, root: Path, uri: str) -> None:
    assert await sources(clients, root).load(config(dict(file(uri)), name="link.py")) == CODE


async def test_a_file_is_what_an_address_without_a_type_means(clients: HttpClients, root: Path) -> None:
    assert await sources(clients, root).load(config({"uri": "link.py"})) == CODE
    assert await sources(clients, root).load(config({"uri": f"file://{root}/link.py"})) == CODE


@pytest.mark.parametrize(
    ("uri", "code"),
    [
        ("../outside.py", "SCRIPT_NOT_ALLOWED"),
        ("/etc/passwd", "SCRIPT_NOT_ALLOWED"),
        ("file:///etc/passwd", "SCRIPT_NOT_ALLOWED"),
        ("escape.py", "SCRIPT_NOT_ALLOWED"),
        ("sub/../../outside.py", "SCRIPT_NOT_ALLOWED"),
        ("nothing.py", "SCRIPT_NOT_FOUND"),
        ("sub", "SCRIPT_NOT_FOUND"),
        ("binary.py", "SCRIPT_NOT_TEXT"),
        ("large.py", "SCRIPT_TOO_LARGE"),
        ("nul\0.py", "SCRIPT_NOT_READABLE"),
    ],
)
async def test_other_files_are_not_read(clients: HttpClients, root: Path, uri: str, code: str) -> None:
    assert await refusal(sources(clients, root), dict(file(uri))) == code


async def test_without_a_directory_no_file_is_read(clients: HttpClients, root: Path) -> None:
    assert await refusal(sources(clients), dict(file("link.py"))) == "SCRIPT_NOT_ALLOWED"


async def test_the_operator_can_switch_scripts_off(clients: HttpClients, root: Path) -> None:
    assert await refusal(sources(clients, root, enabled=False), dict(file("link.py"))) == "SCRIPT_DISABLED"


@pytest.mark.parametrize("kind", ["gcs", "s3", "azure"])
async def test_scripts_in_a_cloud_need_a_package(
    clients: HttpClients, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    scripts = sources(clients)

    assert await refusal(scripts, {"uri": "x/y.py", "source": {"type": kind}}) == "SCRIPT_SOURCE_UNSUPPORTED"


async def test_so_do_their_addresses(clients: HttpClients, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    assert await refusal(sources(clients), {"uri": "gs://bucket/x.py"}) == "SCRIPT_SOURCE_UNSUPPORTED"
    assert await refusal(sources(clients), {"uri": "s3://bucket/x.py"}) == "SCRIPT_SOURCE_UNSUPPORTED"


class ObjectStores:
    """What the package fsspec looks like to us."""

    def __init__(self) -> None:
        self.opened: list[tuple[str, dict[str, object]]] = []

    def open(self, address: str, mode: str, **options: object) -> BytesIO:
        self.opened.append((address, options))
        if address.endswith("broken.py"):
            raise RuntimeError(f"no, not with {options}")
        if not address.endswith("double.py"):
            raise FileNotFoundError(address)
        return BytesIO(CODE.encode())


async def test_scripts_in_object_stores_come_through_fsspec(
    clients: HttpClients, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = ObjectStores()
    monkeypatch.setitem(sys.modules, "fsspec", stores)
    scripts = sources(clients)

    assert await scripts.load(config({"uri": "gs://bucket/double.py"})) == CODE
    assert await scripts.load(config({"uri": "bucket/double.py", "source": {"type": "s3", "auth": "token"}})) == CODE
    assert [(address, sorted(options)) for address, options in stores.opened] == [
        ("gs://bucket/double.py", []),
        ("s3://bucket/double.py", ["token"]),
    ]
    assert await refusal(scripts, {"uri": "gs://bucket::file:///etc/passwd"}) == "SCRIPT_NOT_ALLOWED"
    assert await refusal(scripts, {"uri": "gs://bucket/other.py"}) == "SCRIPT_NOT_FOUND"
    assert await refusal(scripts, {"uri": "gs://bucket/broken.py"}) == "SCRIPT_NOT_READABLE"


@pytest.mark.parametrize("script", [3, {}, {"source": {"type": "file"}}, {"uri": "x", "source": {"type": "ftp"}}])
async def test_what_is_no_script_is_refused(clients: HttpClients, script: JsonValue) -> None:
    assert await refusal(sources(clients), script) == "TOOL_CONFIG"


async def serve_code(request: Request) -> Response:
    if request.headers.get("authorization") != "Bearer let-me-in-please":
        return PlainTextResponse("who are you?", status_code=401)
    return PlainTextResponse(CODE)


async def test_a_script_is_fetched_from_a_server(clients: HttpClients) -> None:
    app = Starlette(routes=[Route("/double.py", serve_code)])
    scripts = sources(clients)
    async with serve_http(app, Address(host="127.0.0.1", port=0)) as address:
        url = f"http://{address}/double.py"

        authorized: JsonValue = {"uri": url, "source": {"type": "http", "auth": "token"}}
        by_endpoint: JsonValue = {"source": {"type": "http", "endpoint": url, "auth": "token"}}

        assert await scripts.load(config(authorized)) == CODE
        assert await scripts.load(config(by_endpoint)) == CODE
        assert await refusal(scripts, {"uri": url}) == "HTTP_401"
        assert await refusal(scripts, {"uri": f"{url}x", "source": {"type": "http"}}) == "HTTP_404"
    assert await refusal(scripts, {"uri": url}) == "CONN_REFUSED"


async def test_a_python_step_runs_its_script_rather_than_its_code(clients: HttpClients, root: Path) -> None:
    async with PythonPool(limits=PoolLimits(spares=0), environment={}) as pool:
        tool = PythonTool(pool, sources(clients, root))

        assert (await tool.run(call(dict(file("link.py")), n=21))).data == 42
        missing = await tool.run(call(dict(file("nothing.py"))))

    assert missing.error is not None
    assert missing.error.code == "SCRIPT_NOT_FOUND"
