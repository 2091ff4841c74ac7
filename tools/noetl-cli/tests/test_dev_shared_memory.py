"""What a stack leaves in memory goes with it, whatever its settings say."""

from pathlib import Path

from noetl_adapters.payload.shm_directory import NodeDirectory, directory_name
from noetl_cli.dev.home import StackHome
from noetl_cli.dev.shared_memory import remove_copies
from noetl_cli.dev.stack import SETTINGS_FILE, payload_url


def left_behind(home: StackHome, shared_memory: Path, *, url: str | None = None) -> Path:
    """As a process leaves it that is killed."""
    path = shared_memory / directory_name(url or payload_url(home), {})
    path.mkdir(mode=0o700, parents=True)
    (path / "a segment").write_bytes(b"x")
    return path


def test_copies_that_nobody_uses_are_removed(tmp_path: Path) -> None:
    home, environment = StackHome(root=tmp_path / "home"), {"NOETL_PAYLOAD_SHM_DIR": str(tmp_path / "shm")}
    path = left_behind(home, tmp_path / "shm")

    assert remove_copies(home, environment)
    assert not path.exists()
    assert not remove_copies(home, environment)


def test_settings_say_where_they_are_and_bad_ones_nothing(tmp_path: Path) -> None:
    home = StackHome(root=tmp_path / "home")
    home.create()
    settings = home.root / SETTINGS_FILE
    settings.write_text(f"NOETL_PAYLOAD_URL=s3://bucket\nNOETL_PAYLOAD_SHM_DIR={tmp_path / 'shm'}\n")
    path = left_behind(home, tmp_path / "shm", url="s3://bucket")
    assert remove_copies(home, {})
    assert not path.exists()

    settings.write_text("no setting\n")
    assert not remove_copies(home, {"NOETL_PAYLOAD_SHM_DIR": str(tmp_path / "shm")})


def test_copies_that_somebody_uses_stay(tmp_path: Path) -> None:
    home = StackHome(root=tmp_path / "home")
    path = left_behind(home, tmp_path / "shm")
    user = NodeDirectory.open(path)

    assert not remove_copies(home, {"NOETL_PAYLOAD_SHM_DIR": str(tmp_path / "shm")})
    assert (path / "a segment").exists()
    user.close()
    assert not path.exists()
