"""`noetl credential` against api's own rules, over a store in memory."""

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from io import BytesIO, TextIOWrapper
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest
from noetl.credential.v1 import credential_pb2_grpc
from noetl_adapters.secrets.aes_gcm import AesGcmSealer
from noetl_adapters.secrets.keys import FileKeys
from noetl_api.application.credentials import Credentials
from noetl_api.application.rotate_credentials import RotateCredentials
from noetl_api.application.use_cases import UseCases
from noetl_api.entrypoints.grpc.credential_service import CredentialServicer
from noetl_api.telemetry import CredentialMetrics
from noetl_cli.__main__ import run
from noetl_cli.credential_keys import add_key, ensure_keys_file
from noetl_contracts.status import to_grpc_status
from noetl_core.credential_keys import parse_keys
from noetl_core.errors import AlreadyExists, InvalidInput, NoetlError
from noetl_servicekit.callers import Caller, Role, answer_as
from noetl_servicekit.metrics import MetricSet
from noetl_testkit.memory.credential_store import InMemoryCredentialStore
from structlog.testing import capture_logs

SECRET = "hunter2"
Output = pytest.CaptureFixture[str]


class OneAtATime:
    """The real servicer behind a server with threads; the token is the role."""

    def __init__(self, servicer: CredentialServicer) -> None:
        for method in ("Put", "Get", "List", "Delete", "Resolve", "Rotate"):
            setattr(self, method, self._method(getattr(servicer, method)))

    def _method(self, inner: Any) -> Any:
        def call(request: Any, context: grpc.ServicerContext) -> Any:
            role = Role(str(dict(context.invocation_metadata())["authorization"]).removeprefix("Bearer "))
            caller = Caller(name=role.value, tenant_id="default", organization_id="default", role=role)

            async def answer() -> Any:
                answer_as(caller, "")
                return await inner(request, context)

            try:
                return asyncio.run(answer())
            except NoetlError as exc:
                context.abort_with_status(to_grpc_status(exc))

        return call


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    keys_file: Path
    monkeypatch: pytest.MonkeyPatch

    def token_of(self, role: str) -> None:
        self.monkeypatch.setenv("NOETL_TOKEN", role)


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    keys_file = tmp_path / "secrets" / "credential.keys"
    add_key(keys_file, key_id="first")
    store, sealer = InMemoryCredentialStore(), AesGcmSealer(FileKeys(keys_file))
    metrics, ids = CredentialMetrics(MetricSet()), count(1)
    use_cases = SimpleNamespace(
        credentials=Credentials(store, sealer, next_id=lambda: next(ids), metrics=metrics),
        rotate_credentials=RotateCredentials(store, sealer, metrics=metrics),
    )
    server = grpc.server(ThreadPoolExecutor(1))
    servicer: Any = OneAtATime(CredentialServicer(cast("UseCases", use_cases)))
    credential_pb2_grpc.add_CredentialServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    monkeypatch.setenv("NOETL_API_ADDRESS", f"127.0.0.1:{port}")
    monkeypatch.setenv("NOETL_TOKEN", "writer")
    with capture_logs() as logs:  # of the server, which runs in this process
        yield Api(keys_file=keys_file, monkeypatch=monkeypatch)
        server.stop(None).wait()
    assert SECRET not in str(logs)


@pytest.fixture
def data_file(tmp_path: Path) -> str:
    file = tmp_path / "data.json"
    file.write_text(json.dumps({"db_password": SECRET, "db_port": 5432}))
    return str(file)


def put(name: str = "pg", *more: str) -> int:
    return run(["credential", "put", name, "--type", "postgres", "--set", f"db_password={SECRET}", *more])


def test_a_credential_is_stored_and_shown_without_its_secrets(api: Api, data_file: str, capsys: Output) -> None:
    arguments = ["--description", "for orders", "--tag", "orders", "--tag", "eu", "-o", "json"]
    assert run(["credential", "put", "pg", "--type", "postgres", "--data-file", data_file, *arguments]) == 0
    stored = json.loads(capsys.readouterr().out)
    assert (stored["name"], stored["type"], stored["created"], stored["tags"]) == (
        "pg",
        "postgres",
        True,
        ["orders", "eu"],
    )

    assert run(["credential", "get", "pg"]) == 0
    shown = capsys.readouterr().out
    assert "for orders" in shown
    assert "key          first" in shown
    assert SECRET not in shown
    assert put() == 0
    assert capsys.readouterr().out == "pg: replaced\n"


def test_only_an_admin_is_shown_the_secrets(api: Api, data_file: str, capsys: Output) -> None:
    run(["credential", "put", "pg", "--data-file", data_file, "--set", "db_host=db"])
    capsys.readouterr()

    assert run(["credential", "get", "pg", "--include-data", "-o", "json"]) == 1
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "auth.forbidden"

    api.token_of("admin")
    assert run(["credential", "get", "pg", "--include-data", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["data"] == {"db_host": "db", "db_password": SECRET, "db_port": 5432}
    assert run(["credential", "get", "pg", "--include-data"]) == 0
    assert f'"db_password": "{SECRET}"' in capsys.readouterr().out


def test_a_value_that_is_set_is_always_text(api: Api, capsys: Output) -> None:
    assert run(["credential", "put", "pg", "--set", "pin=0042", "--set", "expression=a=b"]) == 0
    api.token_of("admin")
    capsys.readouterr()

    run(["credential", "get", "pg", "--include-data", "-o", "json"])

    assert json.loads(capsys.readouterr().out)["data"] == {"pin": "0042", "expression": "a=b"}


def test_secrets_can_come_from_stdin(api: Api, monkeypatch: pytest.MonkeyPatch, capsys: Output) -> None:
    monkeypatch.setattr("sys.stdin", TextIOWrapper(BytesIO(b'{"token": "hunter2"}')))

    assert run(["credential", "put", "api", "--type", "bearer", "--data-file", "-"]) == 0

    assert capsys.readouterr().out == "api: stored\n"


def test_a_file_that_describes_a_credential_is_registered(api: Api, tmp_path: Path, capsys: Output) -> None:
    file = tmp_path / "pg.json"
    file.write_text(json.dumps({"name": "pg_k8s", "type": "postgres", "tags": ["dev"], "data": {"p": SECRET}}))

    assert run(["credential", "register", str(file)]) == 0

    assert capsys.readouterr().out == "pg_k8s: stored\n"


def test_credentials_are_listed_and_removed(api: Api, capsys: Output) -> None:
    for name in ("b", "a"):
        put(name)
    capsys.readouterr()

    assert run(["credential", "list", "--limit", "1", "-o", "json"]) == 0
    page = json.loads(capsys.readouterr().out)
    assert ([one["name"] for one in page["credentials"]], page["next_page_token"]) == (["a"], "a")
    assert run(["credential", "list", "--type", "postgres", "--contains", "B"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["NAME", "TYPE", "TAGS", "KEY", "UPDATED", "BY"]
    assert lines[1].startswith("b     postgres")
    assert run(["credential", "delete", "a"]) == 0
    assert capsys.readouterr().out == "a: deleted\n"
    assert run(["credential", "delete", "a"]) == 3
    assert run(["credential", "get", "a"]) == 3
    assert run(["credential", "list", "--type", "none"]) == 0
    assert capsys.readouterr().out == "no credentials\n"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], ""),
        (["--set", SECRET], ""),
        (["--data-file", "{file}"], f'{{"p": "{SECRET}'),
        (["--data-file", "{file}"], f'["{SECRET}"]'),
        (["--data-file", "{file}"], f'{{"p": "{SECRET}", "n": NaN}}'),
        (["--data-file", "{file}"], "[" * 100_000),
        (["--data-file", "{file}"], "{}"),
    ],
)
def test_what_cannot_be_stored_is_refused_without_repeating_it(
    arguments: list[str], text: str, api: Api, tmp_path: Path, capsys: Output
) -> None:
    file = tmp_path / "data.json"
    file.write_text(text)

    assert run(["credential", "put", "pg", *(part.format(file=file) for part in arguments)]) == 2

    captured = capsys.readouterr()
    assert SECRET not in captured.out + captured.err
    assert captured.err


def test_a_new_key_encrypts_at_once_and_a_rotation_moves_the_rest(api: Api, capsys: Output) -> None:
    for name in ("a", "b"):
        put(name)
    assert run(["credential", "new-key", "--keys-file", str(api.keys_file), "--id", "second"]) == 0
    put("c")
    api.token_of("admin")
    capsys.readouterr()

    assert run(["credential", "rotate"]) == 0
    assert capsys.readouterr().out == "2 moved to key second\n"
    assert run(["credential", "rotate", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"key_id": "second", "rotated": 0, "unreadable": []}


def test_a_rotation_that_leaves_something_behind_says_so_and_fails(api: Api, capsys: Output) -> None:
    put("a")
    api.keys_file.unlink()
    add_key(api.keys_file, key_id="second")
    api.token_of("admin")
    capsys.readouterr()

    assert run(["credential", "rotate"]) == 1

    captured = capsys.readouterr()
    assert captured.out == "nothing to move to key second\n"
    assert captured.err == "no key opens 'a' of default/default: it was stored with 'first'\n"


def test_a_keys_file_is_made_once_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    file = tmp_path / "new" / "credential.keys"

    ensure_keys_file(file)
    before = file.read_text()
    ensure_keys_file(file)

    assert file.read_text() == before
    assert file.stat().st_mode & 0o777 == 0o600
    assert len(parse_keys(before)) == 1


def test_a_key_that_is_added_is_the_first_and_the_others_stay(tmp_path: Path) -> None:
    file = tmp_path / "credential.keys"
    ensure_keys_file(file)
    (first,) = parse_keys(file.read_text())

    made = add_key(file)

    keys = parse_keys(file.read_text())
    assert [key.key_id for key in keys] == [made, first.key_id]
    assert keys[1] == first
    with pytest.raises(AlreadyExists):
        add_key(file, key_id=made)
    with pytest.raises(InvalidInput):
        add_key(file, key_id="not an id")
    file.write_text("nonsense")
    with pytest.raises(InvalidInput):
        add_key(file)
    assert file.read_text() == "nonsense"


def test_of_many_who_add_a_key_at_once_none_loses_its(tmp_path: Path) -> None:
    file = tmp_path / "credential.keys"

    with ThreadPoolExecutor(8) as pool:
        made = set(pool.map(lambda number: add_key(file, key_id=f"k{number}"), range(16)))

    assert {key.key_id for key in parse_keys(file.read_text())} == made
