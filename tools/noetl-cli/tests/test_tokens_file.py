import json
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from noetl_cli.tokens import TokenEntry, add_token, entry_for, new_token, put_tokens
from noetl_core.errors import AlreadyExists, InvalidInput
from noetl_servicekit.callers import Role
from noetl_servicekit.tokens import Tokens


def entry(name: str, token: str, *, role: str = "writer", tenant: str = "acme") -> TokenEntry:
    return entry_for(token, name=name, tenant_id=tenant, organization_id=tenant, role=role)


def test_a_server_knows_whom_a_token_belongs_to_and_the_file_does_not_hold_it(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    token = new_token()

    add_token(file, entry("ada", token))

    caller = Tokens(file).authenticate(f"Bearer {token}")
    assert (caller.name, caller.tenant_id, caller.role) == ("ada", "acme", Role.WRITER)
    assert token not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_name_is_given_once(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    add_token(file, entry("ada", "one"))

    with pytest.raises(AlreadyExists):
        add_token(file, entry("ada", "two"))


def test_of_many_who_add_at_once_none_is_lost(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: add_token(file, entry(f"caller-{number}", f"token-{number}")), range(24)))

    names = {one["name"] for one in json.loads(file.read_text())["tokens"]}
    assert names == {f"caller-{number}" for number in range(24)}


def test_putting_tokens_replaces_those_of_their_names_and_keeps_the_others(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    add_token(file, entry("local", "old"))
    add_token(file, entry("ada", "hers"))

    put_tokens(file, entry("local", "new"))

    tokens = Tokens(file)
    assert tokens.authenticate("Bearer new").name == "local"
    assert tokens.authenticate("Bearer hers").name == "ada"
    assert len(json.loads(file.read_text())["tokens"]) == 2


@pytest.mark.parametrize(
    ("role", "tenant", "reason"),
    [
        ("boss", "acme", "one of reader, writer, admin, service"),
        ("writer", "*", "only a service"),
        ("reader", "", "needs a"),
    ],
)
def test_what_servers_would_refuse_is_refused_before_it_is_written(role: str, tenant: str, reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        entry("ada", "token", role=role, tenant=tenant)


@pytest.mark.parametrize("text", ["{", "[]", '{"tokens": 5}', '{"tokens": [5]}'])
def test_a_file_that_is_no_tokens_file_is_left_as_it_is(tmp_path: Path, text: str) -> None:
    file = tmp_path / "tokens.json"
    file.write_text(text)

    with pytest.raises(InvalidInput, match="not a tokens file"):
        add_token(file, entry("ada", "token"))

    assert file.read_text() == text
