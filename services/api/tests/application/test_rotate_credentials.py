from __future__ import annotations

from itertools import count

import pytest
from noetl_adapters.secrets.aes_gcm import AesGcmSealer
from noetl_adapters.secrets.keys import StaticKeys
from noetl_api.application.credentials import Credentials
from noetl_api.application.rotate_credentials import RotateCredentials
from noetl_api.telemetry import CredentialMetrics
from noetl_core.credential_keys import CredentialKey
from noetl_core.errors import InvalidInput, NotFound, Unavailable
from noetl_core.ports.credentials import Credential, SealedCredential, SealedData
from noetl_servicekit.callers import Caller, Role
from noetl_servicekit.metrics import MetricSet
from noetl_testkit.memory.credential_store import InMemoryCredentialStore

OLD = CredentialKey(key_id="old", secret=b"o" * 32)
NEW = CredentialKey(key_id="new", secret=b"n" * 32)
ROOT = Caller(name="root", tenant_id="acme", organization_id="ops", role=Role.ADMIN)
NAMES = ("a", "b", "c", "d", "e")

_ids = count(1)


class InterruptedStore(InMemoryCredentialStore):
    """Lets something happen right before the data that a rotation has opened are written back."""

    def __init__(self) -> None:
        super().__init__()
        self.before_reseal: dict[str, object] = {}

    async def reseal(self, credential: SealedCredential, sealed: SealedData) -> bool:
        match self.before_reseal.pop(credential.info.name, None):
            case "crash":
                raise Unavailable("the database is away")
            case "delete":
                await self.delete(credential.scope, credential.info.name)
            case Credential() as replacement:
                await credentials(self, NEW, OLD).put(ROOT, None, replacement)
        return await super().reseal(credential, sealed)


def credentials(store: InMemoryCredentialStore, *keys: CredentialKey) -> Credentials:
    sealer = AesGcmSealer(StaticKeys(keys))
    return Credentials(store, sealer, next_id=lambda: next(_ids), metrics=CredentialMetrics(MetricSet()))


def rotation(store: InMemoryCredentialStore, *keys: CredentialKey) -> RotateCredentials:
    return RotateCredentials(store, AesGcmSealer(StaticKeys(keys)), metrics=CredentialMetrics(MetricSet()))


def named(name: str, value: str = "old") -> Credential:
    return Credential(name=name, type="x", data={"k": value})


@pytest.fixture
async def store() -> InterruptedStore:
    store = InterruptedStore()
    for name in NAMES:
        await credentials(store, OLD).put(ROOT, None, named(name))
    return store


async def test_a_rotation_that_was_interrupted_is_finished_by_the_next_one(store: InterruptedStore) -> None:
    rotate = rotation(store, NEW, OLD)
    store.before_reseal["c"] = "crash"
    with pytest.raises(Unavailable):
        await rotate(ROOT, None)
    both = credentials(store, NEW, OLD)
    for name in NAMES:  # in the middle of it, everything is readable
        assert (await both.reveal(ROOT, None, name))[1] == named(name)

    page = await rotate(ROOT, None)

    assert (page.rotated, page.unreadable, page.next_page_token) == (3, (), "")
    for name in NAMES:
        assert (await credentials(store, NEW).reveal(ROOT, None, name))[1] == named(name)


async def test_who_stores_or_removes_in_between_has_the_last_word(store: InterruptedStore) -> None:
    store.before_reseal = {"b": named("b", "newer"), "d": "delete"}

    page = await rotation(store, NEW, OLD)(ROOT, None)

    assert page.rotated == 3
    only_new = credentials(store, NEW)
    assert (await only_new.reveal(ROOT, None, "b"))[1] == named("b", "newer")
    with pytest.raises(NotFound):
        await only_new.get(ROOT, None, "d")


async def test_one_that_cannot_be_opened_keeps_no_other_from_being_moved(store: InterruptedStore) -> None:
    lost = CredentialKey(key_id="lost", secret=b"l" * 32)
    await credentials(store, lost).put(ROOT, None, named("c"))

    pages = []
    token = ""
    while True:
        page = await rotation(store, NEW, OLD)(ROOT, None, size=2, token=token)
        pages.append(page)
        token = page.next_page_token
        if not token:
            break

    assert sum(page.rotated for page in pages) == 4
    assert [(one.name, one.key_id) for page in pages for one in page.unreadable] == [("c", "lost")]
    assert (await credentials(store, lost).reveal(ROOT, None, "c"))[1] == named("c")


async def test_a_token_of_another_list_is_refused(store: InterruptedStore) -> None:
    with pytest.raises(InvalidInput):
        await rotation(store, NEW)(ROOT, None, token="pg")
