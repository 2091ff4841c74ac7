from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from noetl_adapters.secrets.keys import FileKeys, KeyProvider, StaticKeys
from noetl_adapters.secrets.sources import key_provider
from noetl_core.credential_keys import CredentialKey, KeysInvalid
from noetl_core.credentials import KeyMissing

OLD = CredentialKey(key_id="old", secret=b"o" * 32)
NEW = CredentialKey(key_id="new", secret=b"n" * 32)


def write(path: Path, *keys: CredentialKey) -> None:
    """As an editor or a mounted Secret does it: the new file takes the place of the old one."""
    unfinished = path.with_suffix(".new")
    unfinished.write_text("".join(f"{key.line()}\n" for key in keys))
    unfinished.replace(path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "credential.keys"
    write(path, OLD)
    return path


class Reports(list[tuple[str, str]]):
    def __call__(self, event: str, detail: str) -> None:
        self.append((event, detail))

    @property
    def events(self) -> list[str]:
        return [event for event, _ in self]


async def test_the_first_key_is_the_current_one() -> None:
    keys = StaticKeys([NEW, OLD])

    assert await keys.current() == NEW
    assert await keys.find("old") == OLD
    with pytest.raises(KeyMissing):
        await keys.find("none")


async def test_a_key_that_is_put_into_the_file_is_used_at_once(path: Path) -> None:
    reports = Reports()
    keys = FileKeys(path, report=reports)
    with pytest.raises(KeyMissing):
        await keys.find("new")

    write(path, NEW, OLD)

    assert await keys.current() == NEW
    assert await keys.find("old") == OLD
    assert reports == [("credential_keys.reloaded", str(path))]


@pytest.mark.parametrize("spoil", [lambda path: path.write_text("nonsense"), lambda path: path.unlink()])
async def test_a_file_that_went_bad_is_reported_once_and_changes_nothing(
    path: Path, spoil: Callable[[Path], object]
) -> None:
    reports = Reports()
    keys = FileKeys(path, report=reports)

    spoil(path)
    assert [await keys.current(), await keys.find("old")] == [OLD, OLD]
    assert reports.events == ["credential_keys.reload_failed"]
    assert "nonsense" not in reports[0][1]

    write(path, NEW)
    assert await keys.current() == NEW
    assert reports.events == ["credential_keys.reload_failed", "credential_keys.reloaded"]


@pytest.mark.parametrize("contents", [b"", b"nonsense", b"\xff\xfe"])
def test_a_file_without_keys_is_refused_by_name(path: Path, contents: bytes) -> None:
    path.write_bytes(contents)

    with pytest.raises(KeysInvalid, match=r"credential\.keys"):
        FileKeys(path)


def test_a_file_that_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(KeysInvalid, match=r"none\.keys.*No such file"):
        FileKeys(tmp_path / "none.keys")


def source(**given: Any) -> KeyProvider | None:
    nothing: dict[str, Any] = {"keys": "", "keys_file": None, "provider": "", "environment": {}}
    return key_provider(**{**nothing, **given})


async def test_keys_come_from_the_source_that_is_set(path: Path) -> None:
    of_variable = source(keys=f"{NEW.line()},{OLD.line()}")
    of_file = source(keys_file=path)

    assert of_variable is not None
    assert await of_variable.current() == NEW
    assert of_file is not None
    assert await of_file.current() == OLD


def test_without_a_source_there_are_no_keys() -> None:
    assert source() is None


async def test_an_installed_package_can_provide_the_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "acme_kms.py").write_text(
        "from noetl_adapters.secrets.keys import StaticKeys\n"
        "def connect(environment):\n"
        "    return StaticKeys.from_text(environment['ACME_KMS_KEYS'])\n"
    )
    metadata = tmp_path / "acme_kms-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-kms\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text("[noetl.credential_keys]\nacme = acme_kms:connect\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    environment: Mapping[str, str] = {"ACME_KMS_KEYS": NEW.line()}

    provided = source(provider="acme", environment=environment)

    assert provided is not None
    assert await provided.current() == NEW
    with pytest.raises(KeysInvalid, match=r"'other'.*acme"):
        source(provider="other")
    sys.modules.pop("acme_kms")
