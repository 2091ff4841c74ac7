"""Credentials through an api replica: encrypted at rest, shown to few, given to services, moved to new keys."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest
from noetl_contracts.clients import ResolvedCredentials
from noetl_core.credential_keys import CredentialKey
from noetl_core.credentials import (
    CredentialInvalid,
    CredentialsNotConfigured,
    CredentialUnreadable,
    KeyMissing,
)
from noetl_core.errors import InvalidInput, NotFound, NotPermitted
from noetl_core.ports.credentials import Credential, RotatedPage
from structlog.testing import capture_logs

OLD = CredentialKey(key_id="old", secret=b"o" * 32)
NEW = CredentialKey(key_id="new", secret=b"n" * 32)
SECRET = "hunter2-of-acme"
PG = Credential(
    name="pg",
    type="postgres",
    description="for orders",
    tags=("orders",),
    data={"db_host": "db", "db_port": 5432, "db_password": SECRET},
)


@pytest.fixture
def keys_file(tmp_path: Path) -> Path:
    file = tmp_path / "credential.keys"
    file.write_text(f"{OLD.line()}\n")
    return file


@pytest.fixture
def api_values(api_values: dict[str, str], keys_file: Path) -> dict[str, str]:
    return {**api_values, "NOETL_CREDENTIAL_KEYS_FILE": str(keys_file)}


def put_key_first(keys_file: Path) -> None:
    unfinished = keys_file.with_suffix(".new")
    unfinished.write_text(f"{NEW.line()}\n{OLD.line()}\n")
    unfinished.replace(keys_file)


async def test_a_credential_goes_all_the_way_and_comes_back_to_the_call_that_needs_it(api: Any) -> None:
    ada = await api.as_("ada")

    stored = await ada.credentials.put(None, PG)

    assert stored.created
    assert (stored.info.name, stored.info.type, stored.info.key_id) == ("pg", "postgres", "old")
    assert (stored.info.created_by, stored.info.updated_by) == ("ada", "ada")
    resolved = ResolvedCredentials(await api.channel("service"))
    assert await resolved.get(tenant_id="acme", organization_id="ops", name="pg", execution_id=7) == PG


async def test_the_database_holds_no_secret(api: Any, installed_dsn: str) -> None:
    await (await api.as_("ada")).credentials.put(None, PG)

    connection = await asyncpg.connect(installed_dsn)
    row = await connection.fetchrow("SELECT * FROM noetl.credential")
    await connection.close()

    assert SECRET not in str(dict(row))
    assert SECRET.encode() not in row["ciphertext"]


async def test_only_an_admin_sees_data_and_everybody_who_looks_is_noted(api: Any) -> None:
    ada, rita, root = await api.as_("ada"), await api.as_("rita"), await api.as_("root")
    await ada.credentials.put(None, PG)
    await rita.credentials.get(None, "pg")

    with capture_logs() as logs:
        info, credential = await root.credentials.reveal(None, "pg")
        for curious in (ada, rita):
            with pytest.raises(NotPermitted):
                await curious.credentials.reveal(None, "pg")

    assert credential == PG
    assert info == await rita.credentials.get(None, "pg")
    audit = [
        (line["event"], line["name"], line["caller"], line["tenant_id"], line["organization_id"])
        for line in logs
        if line["event"].startswith("credential.")
    ]
    assert audit == [
        ("credential.revealed", "pg", "root", "acme", "ops"),
        ("credential.reveal_refused", "pg", "ada", "acme", "ops"),
        ("credential.reveal_refused", "pg", "rita", "acme", "ops"),
    ]
    assert SECRET not in str(logs)


async def test_only_a_service_resolves_and_each_time_is_noted(api: Any) -> None:
    await (await api.as_("ada")).credentials.put(None, PG)
    for name in ("ada", "root"):
        with pytest.raises(NotPermitted):
            resolved = ResolvedCredentials(await api.channel(name))
            await resolved.get(tenant_id="acme", organization_id="ops", name="pg")

    with capture_logs() as logs:
        resolved = ResolvedCredentials(await api.channel("service"))
        await resolved.get(tenant_id="acme", organization_id="ops", name="pg", execution_id=7)

    (line,) = [line for line in logs if line["event"] == "credential.resolved"]
    assert (line["name"], line["execution_id"], line["caller"], line["tenant_id"]) == ("pg", "7", "service", "acme")
    assert SECRET not in str(logs)


async def test_a_call_is_told_plainly_that_there_is_no_such_credential(api: Any) -> None:
    await (await api.as_("ada")).credentials.put(None, PG)
    resolved = ResolvedCredentials(await api.channel("service"))

    for tenant, organization, name in (("acme", "ops", "PG"), ("acme", "sales", "pg"), ("rival", "ops", "pg")):
        with pytest.raises(NotFound) as refusal:
            await resolved.get(tenant_id=tenant, organization_id=organization, name=name)
        assert refusal.value.code == "CREDENTIAL_NOT_FOUND"


async def test_what_belongs_to_others_does_not_exist(api: Any) -> None:
    await (await api.as_("ada")).credentials.put(None, PG)

    for stranger in ("sam", "rival"):
        client = (await api.as_(stranger)).credentials
        for attempt in (client.get(None, "pg"), client.delete(None, "pg")):
            with pytest.raises(NotFound) as refusal:
                await attempt
            assert refusal.value.code == "credential.not_found"
        assert (await client.list(None)).credentials == ()
        await client.put(None, Credential(name="pg", type="x", data={"k": stranger}))
    assert (await (await api.as_("root")).credentials.reveal(None, "pg"))[1] == PG


async def test_readers_change_nothing(api: Any) -> None:
    await (await api.as_("ada")).credentials.put(None, PG)
    rita = (await api.as_("rita")).credentials

    for attempt in (rita.put(None, PG), rita.delete(None, "pg"), rita.rotate(None)):
        with pytest.raises(NotPermitted):
            await attempt


async def test_bad_credentials_are_refused_without_repeating_them(api: Any) -> None:
    client = (await api.as_("ada")).credentials

    with capture_logs() as logs, pytest.raises(CredentialInvalid) as refusal:
        await client.put(None, Credential(name="p\0g", type="x", data={"k": SECRET}))

    assert SECRET not in str(refusal.value)
    assert SECRET not in str(logs)
    assert (await client.list(None)).credentials == ()


async def test_a_credential_is_replaced_listed_and_removed(api: Any) -> None:
    client = (await api.as_("ada")).credentials
    first = (await client.put(None, PG)).info
    await client.put(None, Credential(name="mail", type="basic", data={"username": "a"}))

    again = await client.put(None, Credential(name="pg", type="postgres", data={"dsn": "other"}))

    assert not again.created
    assert again.info.credential_id == first.credential_id
    assert [info.name for info in (await client.list(None)).credentials] == ["mail", "pg"]
    assert [info.name for info in (await client.list(None, type_name="basic")).credentials] == ["mail"]
    assert (await client.delete(None, "pg")).name == "pg"
    with pytest.raises(NotFound):
        await client.get(None, "pg")


async def test_existing_clients_use_the_http_routes(api: Any) -> None:
    ada, root = (await api.as_("ada")).http, (await api.as_("root")).http
    body = {
        "name": "team/pg",
        "credential_type": "postgres",
        "description": None,
        "tags": "orders, eu",
        "data": dict(PG.data),
        "meta": None,
    }

    stored = await ada.post("/api/credentials", json=body)

    assert stored.status_code == 200
    assert SECRET not in stored.text
    document = stored.json()
    assert (document["name"], document["type"], document["tags"]) == ("team/pg", "postgres", ["orders", "eu"])
    assert document["id"].isdigit()
    listed = (await ada.get("/api/credentials", params={"type": "postgres", "q": "PG"})).json()
    assert [item["id"] for item in listed["items"]] == [document["id"]]
    assert (listed["filter"], listed["next_page_token"]) == ({"type": "postgres", "q": "PG"}, "")
    shown = await ada.get("/api/credentials/team/pg")
    assert (shown.status_code, shown.json()["data"]) == (200, None)
    revealed = await root.get("/api/credentials/team/pg", params={"include_data": "true"})
    assert revealed.json()["data"] == PG.data
    assert revealed.headers["cache-control"] == "no-store"
    removed = await ada.delete("/api/credentials/team/pg")
    assert (removed.status_code, removed.json()["id"]) == (200, document["id"])
    assert (await ada.get("/api/credentials/team/pg")).status_code == 404


async def test_problems_over_http_are_typed_and_repeat_no_secret(api: Any) -> None:
    ada = (await api.as_("ada")).http
    good = {"name": "pg", "type": "postgres", "data": {"k": SECRET}}
    await ada.post("/api/credentials", json=good)

    async def post(**changes: object) -> httpx.Response:
        response: httpx.Response = await ada.post("/api/credentials", json={**good, **changes})
        return response

    with capture_logs() as logs:
        answers = [
            (await ada.get("/api/credentials/pg", params={"include_data": "true"}), 403, "auth.forbidden"),
            (await ada.get("/api/credentials/none"), 404, "credential.not_found"),
            (await ada.delete("/api/credentials/none"), 404, "credential.not_found"),
            (await post(data={}), 400, "credential.invalid"),
            (await post(data={"k": 2**60, "p": SECRET}), 400, "credential.invalid"),
            (await post(meta={"k": SECRET}), 400, "credential.invalid"),
            (await post(name=""), 400, "credential.invalid"),
            (await post(data=SECRET), 422, "request.invalid"),
            (await post(data=[SECRET]), 422, "request.invalid"),
            (await post(passwort=SECRET), 422, "request.invalid"),
            (await post(tags={"k": SECRET}), 422, "request.invalid"),
            (await ada.post("/api/credentials", content=f'{{"data": "{SECRET}'.encode()), 422, "request.invalid"),
        ]

    for response, status, code in answers:
        assert (response.status_code, response.json()["code"]) == (status, code)
        assert SECRET not in response.text
    assert SECRET not in str(logs)


async def test_a_new_key_is_used_at_once_and_the_old_one_can_go_after_a_rotation(api: Any, keys_file: Path) -> None:
    ada, root = (await api.as_("ada")).credentials, (await api.as_("root")).credentials
    names = [f"c{number}" for number in range(7)]
    for name in names:
        await ada.put(None, Credential(name=name, type="x", data={"k": name}))
    before = (await ada.list(None)).credentials
    await asyncio.to_thread(put_key_first, keys_file)

    assert (await ada.put(None, Credential(name="c0", type="x", data={"k": "c0"}))).info.key_id == "new"
    page = await root.rotate(None, page_size=4)
    assert (page.key_id, page.rotated, bool(page.next_page_token)) == ("new", 4, True)
    page = await root.rotate(None, page_size=4, page_token=page.next_page_token)
    assert (page.rotated, page.next_page_token) == (2, "")
    assert (await root.rotate(None)).rotated == 0

    await asyncio.to_thread(keys_file.write_text, f"{NEW.line()}\n")
    for name in names:
        assert (await root.reveal(None, name))[1].data == {"k": name}
    after = (await ada.list(None)).credentials
    assert {info.key_id for info in after} == {"new"}
    assert [info.updated_at for info in after[1:]] == [info.updated_at for info in before[1:]]


async def test_two_rotations_and_writers_at_once_lose_nothing(api: Any, keys_file: Path) -> None:
    ada, root = (await api.as_("ada")).credentials, (await api.as_("root")).credentials
    names = [f"c{number:02}" for number in range(40)]
    await asyncio.gather(*(ada.put(None, Credential(name=name, type="x", data={"k": "old"})) for name in names))
    await asyncio.to_thread(put_key_first, keys_file)

    async def rotate_all() -> int:
        rotated, token = 0, ""
        while True:
            page: RotatedPage = await root.rotate(None, page_size=5, page_token=token)
            assert page.unreadable == ()
            rotated += page.rotated
            token = page.next_page_token
            if not token:
                return rotated

    replaced = names[::4]
    outcomes = await asyncio.gather(
        rotate_all(),
        rotate_all(),
        *(ada.put(None, Credential(name=name, type="x", data={"k": "newer"})) for name in replaced),
    )

    assert outcomes[0] + outcomes[1] <= len(names)
    for name in names:
        info, credential = await root.reveal(None, name)
        assert (info.key_id, credential.data) == ("new", {"k": "newer" if name in replaced else "old"})


async def test_an_admin_rotates_its_organization_and_a_service_everybodys(api: Any, keys_file: Path) -> None:
    for name in ("ada", "sam", "rival"):
        await (await api.as_(name)).credentials.put(None, PG)
    await asyncio.to_thread(put_key_first, keys_file)

    assert (await (await api.as_("root")).credentials.rotate(None)).rotated == 1
    assert (await (await api.as_("service")).credentials.rotate(None)).rotated == 2


async def test_what_no_key_opens_is_named_and_left_alone(api: Any, keys_file: Path, installed_dsn: str) -> None:
    ada, root = (await api.as_("ada")).credentials, (await api.as_("root")).credentials
    for name in ("swapped", "pg", "good"):
        await ada.put(None, Credential(name=name, type="x", data={"k": SECRET}))
    connection = await asyncpg.connect(installed_dsn)
    await connection.execute(
        "UPDATE noetl.credential AS mine SET ciphertext = other.ciphertext FROM noetl.credential AS other "
        "WHERE mine.name = 'swapped' AND other.name = 'pg'"
    )
    await connection.execute("UPDATE noetl.credential SET key_id = 'lost' WHERE name = 'pg'")
    await connection.close()
    await asyncio.to_thread(put_key_first, keys_file)

    with pytest.raises(CredentialUnreadable) as swapped:
        await root.reveal(None, "swapped")
    with pytest.raises(KeyMissing) as lost:
        await root.reveal(None, "pg")
    page = await root.rotate(None)

    assert (swapped.value.facts["key_id"], lost.value.facts["key_id"]) == ("old", "lost")
    assert SECRET not in f"{swapped.value}{lost.value}"
    assert page.rotated == 1
    assert {(one.name, one.key_id) for one in page.unreadable} == {("swapped", "old"), ("pg", "lost")}
    assert (await root.reveal(None, "good"))[1].data == {"k": SECRET}


async def test_a_service_says_for_whom_it_resolves(api: Any) -> None:
    with pytest.raises(InvalidInput):
        await (await api.as_("service")).credentials.get(None, "pg")


class TestWithoutKeys:
    @pytest.fixture
    def api_values(self, api_values: dict[str, str]) -> dict[str, str]:
        return {name: value for name, value in api_values.items() if name != "NOETL_CREDENTIAL_KEYS_FILE"}

    async def test_credentials_are_refused_and_everything_else_works(self, api: Any) -> None:
        root = await api.as_("root")
        client = root.credentials

        for attempt in (
            client.put(None, PG),
            client.get(None, "pg"),
            client.reveal(None, "pg"),
            client.list(None),
            client.delete(None, "pg"),
            client.rotate(None),
        ):
            with pytest.raises(CredentialsNotConfigured) as refusal:
                await attempt
            assert "NOETL_CREDENTIAL_KEYS_FILE" in str(refusal.value)
        response = await root.http.get("/api/credentials")
        assert (response.status_code, response.json()["code"]) == (409, "credentials.not_configured")
        assert (await root.catalog.list(None)).entries == ()
