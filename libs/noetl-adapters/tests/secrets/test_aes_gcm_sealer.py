from __future__ import annotations

from dataclasses import replace

import pytest
from noetl_adapters.secrets.aes_gcm import AesGcmSealer
from noetl_adapters.secrets.keys import StaticKeys
from noetl_core.credential_keys import CredentialKey
from noetl_core.credentials import CredentialUnreadable, KeyMissing
from noetl_core.ports.credentials import SealedData
from noetl_core.ports.event_log import Scope

ACME = Scope(tenant_id="acme", organization_id="ops")
OLD = CredentialKey(key_id="old", secret=b"o" * 32)
NEW = CredentialKey(key_id="new", secret=b"n" * 32)
DATA = b'{"db_password":"hunter2"}'
STORED_BY_THE_FIRST_RELEASE = (
    "01000102030405060708090a0b63a7625a810bf8e35651d13e325e47b7843ca15600c11ea2bdcd28481d0d89080f5528aebbf59f3ace"
)


def sealer(*keys: CredentialKey) -> AesGcmSealer:
    return AesGcmSealer(StaticKeys(keys))


async def test_what_was_sealed_opens_again() -> None:
    sealed = await sealer(OLD).seal(ACME, "pg", DATA)

    assert sealed.key_id == "old"
    assert b"hunter2" not in sealed.ciphertext
    assert await sealer(OLD).open(ACME, "pg", sealed) == DATA


async def test_the_same_data_are_never_sealed_alike() -> None:
    sealed = {(await sealer(OLD).seal(ACME, "pg", DATA)).ciphertext for _ in range(100)}

    assert len(sealed) == 100


async def test_the_first_key_seals_and_every_key_opens() -> None:
    before = await sealer(OLD).seal(ACME, "pg", DATA)
    both = sealer(NEW, OLD)

    after = await both.seal(ACME, "pg", DATA)

    assert (await both.current_key_id(), after.key_id) == ("new", "new")
    assert await both.open(ACME, "pg", before) == DATA
    assert await both.open(ACME, "pg", after) == DATA


@pytest.mark.parametrize(
    ("scope", "name"),
    [
        (Scope(tenant_id="rival", organization_id="ops"), "pg"),
        (Scope(tenant_id="acme", organization_id="sales"), "pg"),
        (ACME, "other"),
    ],
)
async def test_a_row_that_was_moved_does_not_open(scope: Scope, name: str) -> None:
    sealed = await sealer(OLD).seal(ACME, "pg", DATA)

    with pytest.raises(CredentialUnreadable) as refusal:
        await sealer(OLD).open(scope, name, sealed)

    assert "hunter2" not in str(refusal.value)


async def test_a_row_that_was_changed_in_any_bit_does_not_open() -> None:
    sealed = await sealer(OLD).seal(ACME, "pg", DATA)

    for place in range(len(sealed.ciphertext)):
        changed = bytearray(sealed.ciphertext)
        changed[place] ^= 1
        with pytest.raises(CredentialUnreadable):
            await sealer(OLD).open(ACME, "pg", replace(sealed, ciphertext=bytes(changed)))


@pytest.mark.parametrize("length", [0, 1, 5, 13, 14, 28, 29])
async def test_a_row_that_was_cut_does_not_open(length: int) -> None:
    sealed = await sealer(OLD).seal(ACME, "pg", DATA)

    with pytest.raises(CredentialUnreadable):
        await sealer(OLD).open(ACME, "pg", replace(sealed, ciphertext=sealed.ciphertext[:length]))


async def test_a_missing_key_is_named() -> None:
    sealed = await sealer(OLD).seal(ACME, "pg", DATA)

    with pytest.raises(KeyMissing) as refusal:
        await sealer(NEW).open(ACME, "pg", sealed)

    assert refusal.value.facts == {"key_id": "old"}
    assert "'old'" in str(refusal.value)


async def test_another_key_under_the_same_id_is_named_and_opens_nothing() -> None:
    sealed = await sealer(OLD).seal(ACME, "pg", DATA)
    impostor = replace(NEW, key_id="old")

    with pytest.raises(CredentialUnreadable) as refusal:
        await sealer(impostor).open(ACME, "pg", sealed)

    assert refusal.value.facts == {"name": "pg", "key_id": "old"}


async def test_what_was_sealed_before_opens_in_every_later_release() -> None:
    stored = bytes.fromhex(STORED_BY_THE_FIRST_RELEASE)

    opened = await sealer(OLD).open(ACME, "pg", SealedData(key_id="old", ciphertext=stored))

    assert opened == DATA
