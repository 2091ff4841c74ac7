"""What `auth` can be, and that none of it is ever said aloud."""

import pytest
from noetl_core.canonical import JsonValue
from noetl_core.errors import NotFound, Unavailable
from noetl_core.playbook.views import StepView
from noetl_testkit.memory.tool_credentials import InMemoryToolCredentials
from noetl_worker.application.credentials import CREDENTIAL_NOT_FOUND, Auth, AuthInvalid, resolve_auth
from noetl_worker.application.known_secrets import HIDDEN, KnownSecrets, secrets_in_names
from noetl_worker.application.tool_call import ToolCall

PASSWORD = "correct horse"


@pytest.fixture
def credentials() -> InMemoryToolCredentials:
    stored = InMemoryToolCredentials()
    stored.add("shop_db", "postgres", {"db_host": "db", "db_password": PASSWORD})
    stored.add("token", "bearer", {"token": "t0ken-of-ada"})
    stored.add("shop_db", "postgres", {"db_host": "other"}, tenant_id="else")
    return stored


async def resolved(auth: JsonValue, credentials: InMemoryToolCredentials, **names: object) -> Auth:
    call = ToolCall(
        tenant_id="default", organization_id="default", execution_id=1, step="s", kind="postgres", names=names
    )
    return await resolve_auth(auth, credentials=credentials, call=call)


@pytest.mark.parametrize(
    "auth",
    [
        "shop_db",
        "{{ which }}",
        "shop_{{ 'db' }}",
        {"type": "postgres", "key": "shop_db"},
        {"source": "credential", "key": "{{ which }}"},
        {"credential": "shop_db"},
        {"type": "credential", "key": "shop_db"},
    ],
)
async def test_a_credential_can_be_named_in_many_ways(auth: JsonValue, credentials: InMemoryToolCredentials) -> None:
    found = (await resolved(auth, credentials, which="shop_db")).one()

    assert found is not None
    assert (found.name, found.type, found.data["db_host"]) == ("shop_db", "postgres", "db")


@pytest.mark.parametrize("auth", [None, "", {}, "{{ missing }}"])
async def test_no_auth_is_no_credential(auth: JsonValue, credentials: InMemoryToolCredentials) -> None:
    assert (await resolved(auth, credentials)).one() is None
    assert credentials.fetched == []


async def test_a_map_of_aliases_names_several(credentials: InMemoryToolCredentials) -> None:
    found = await resolved({"pg": "shop_db", "api": {"type": "bearer", "key": "token"}}, credentials)

    assert {alias: credential.name for alias, credential in found.aliases.items()} == {"pg": "shop_db", "api": "token"}
    with pytest.raises(AuthInvalid):
        found.one()
    single = await resolved({"pg": {"type": "postgres", "key": "shop_db"}}, credentials)
    assert single.one() is single.aliases["pg"]


async def test_fields_beside_the_name_win_over_stored_ones(credentials: InMemoryToolCredentials) -> None:
    found = (await resolved({"type": "api_key", "key": "token", "header": "X-Key"}, credentials)).one()

    assert found is not None
    assert (found.type, found.data) == ("api_key", {"token": "t0ken-of-ada", "header": "X-Key"})


async def test_a_credential_can_be_put_together_from_the_keychain(credentials: InMemoryToolCredentials) -> None:
    keychain = {"api": {"token": "from-keychain"}}

    whole = (await resolved("{{ keychain.api }}", credentials, keychain=keychain)).one()
    typed = (
        await resolved({"type": "bearer", "token": "{{ keychain.api.token }}"}, credentials, keychain=keychain)
    ).one()
    header = (await resolved({"type": "api_key", "key": "X-Key", "value": "v"}, credentials)).one()

    assert whole is not None
    assert whole.data == {"token": "from-keychain"}
    assert typed is not None
    assert (typed.type, typed.data) == ("bearer", {"token": "from-keychain"})
    assert header is not None
    assert header.data == {"header": "X-Key", "value": "v"}
    assert credentials.fetched == []


@pytest.mark.parametrize("auth", [3, ["a"], {"a": 1}, {"a": {"b": "c"}}, {"type": "bearer"}, {"key": 3}])
async def test_other_things_are_no_auth(auth: JsonValue, credentials: InMemoryToolCredentials) -> None:
    with pytest.raises(AuthInvalid):
        await resolved(auth, credentials)


async def test_another_organizations_credential_is_not_there(credentials: InMemoryToolCredentials) -> None:
    with pytest.raises(NotFound) as refusal:
        await resolved("nope", credentials)

    assert refusal.value.code == CREDENTIAL_NOT_FOUND


async def test_a_store_that_is_away_is_something_else(credentials: InMemoryToolCredentials) -> None:
    credentials.is_away = True

    with pytest.raises(Unavailable):
        await resolved("shop_db", credentials)


def test_a_credential_does_not_show_its_data_by_accident() -> None:
    secrets = KnownSecrets()
    secrets.add_fields({"password": PASSWORD})

    assert PASSWORD not in repr(secrets)


@pytest.mark.parametrize(
    "spelled",
    [
        PASSWORD,
        "correct%20horse",
        "correct+horse",
        "Y29ycmVjdCBob3JzZQ==",
    ],
)
def test_a_secret_is_hidden_however_it_is_spelled(spelled: str) -> None:
    secrets = KnownSecrets()
    secrets.add_fields({"db_user": "ada", "db_host": "db.example", "db_password": PASSWORD, "port": 5432})

    assert secrets.hide(f"ada@db.example said {spelled}!") == f"ada@db.example said {HIDDEN}!"


def test_quotes_in_a_secret_do_not_make_it_visible() -> None:
    secrets = KnownSecrets(['it\'s "so"'])

    assert secrets.hide("a 'it''s \"so\"' b") == f"a '{HIDDEN}' b"
    assert secrets.hide('{"p": "it\'s \\"so\\""}') == f'{{"p": "{HIDDEN}"}}'


@pytest.mark.parametrize(
    "data",
    [
        {"dsn": "postgres://ada:correct%20horse@db/x"},
        {"dsn": "host=db password='correct-horse'"},
        {"nats_url": "nats://correct-horse@bus:4222"},
        {"nested": {"api_key": "correct-horse"}},
        {"webhook": "https://hooks.example/x?token=correct-horse"},
    ],
)
def test_secrets_inside_addresses_are_known_too(data: dict[str, object]) -> None:
    secrets = KnownSecrets()
    secrets.add_fields(data)

    shown = secrets.hide("correct horse / correct%20horse / correct-horse")

    assert HIDDEN in shown


def test_the_longer_of_two_secrets_is_hidden_as_a_whole() -> None:
    assert KnownSecrets(["abcd", "abcdefgh"]).hide("abcdefgh") == HIDDEN


def test_data_are_changed_only_where_it_cannot_be_chance() -> None:
    secrets = KnownSecrets(["shop", "a-token-of-some-length"])
    data: JsonValue = {"shop": ["Bearer a-token-of-some-length", 1, None], "a-token-of-some-length": True}

    assert secrets.hide_in_data(data) == {"shop": [f"Bearer {HIDDEN}", 1, None], HIDDEN: True}
    assert KnownSecrets().hide_in_data(data) is data


def test_bytes_that_hold_a_secret_are_recognized() -> None:
    assert KnownSecrets([PASSWORD]).are_in(b"p=correct+horse")
    assert not KnownSecrets([PASSWORD]).are_in(b"p=wrong")


@pytest.mark.parametrize(
    "keychain", [{"api": {"token": PASSWORD}}, {"api": PASSWORD}, StepView({"api": {"x": PASSWORD}})]
)
def test_everything_in_the_keychain_is_secret(keychain: object) -> None:
    assert secrets_in_names({"keychain": keychain}).hide(PASSWORD) == HIDDEN
    assert secrets_in_names({}).hide(PASSWORD) == PASSWORD
