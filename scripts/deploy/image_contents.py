"""What is in a built image, and what must not be: judged by its files, before anything in it runs."""

import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from scripts.deploy.containers import Image

USER: Final = 10001
_BUILD_TOOLS: Final = frozenset(
    {
        *("gcc", "g++", "cc", "c++", "cpp", "clang", "ld", "as", "make", "cmake", "ninja"),
        *("cargo", "rustc", "go", "git", "pip", "pip3", "uv", "uvx", "hatch", "curl", "wget"),
    }
)
_HEADERS: Final = ("usr/include", "usr/local/include", "opt")
_LEFT_OVER: Final = ("source", "opt/uv", "root/.cache", "tmp", "var/cache/apt/archives", "var/lib/apt/lists")
_EMPTY_BUT_FOR: Final = frozenset({"lock", "partial"})
_EVERYBODYS: Final = ("dev/", "tmp", "var/tmp", "run/lock", "var/lock")
_LOCKED: Final = re.compile(r"^([a-z0-9][a-z0-9._-]*)==([^ ;\\]+)", re.MULTILINE)


def problems_of_image(image: Image, lock: str) -> list[str]:
    """All of them, each as a sentence about a file."""
    return [
        *_of_user(image),
        *_of_files(image.root),
        *_of_packages(image.root, dict(_LOCKED.findall(lock))),
    ]


def _of_user(image: Image) -> Iterator[str]:
    if image.user != (USER, USER):
        yield f"runs as {image.config.get('User') or 'root'}, not as {USER}:{USER}"
    users = [line.split(":") for line in (image.root / "etc/passwd").read_text(encoding="utf-8").splitlines()]
    if not any(user[2] == str(USER) for user in users):
        yield f"/etc/passwd does not know the user {USER}"


def _of_files(root: Path) -> Iterator[str]:
    for directory in ("bin", "usr/bin", "usr/local/bin", "opt/noetl/bin"):
        for name in sorted(_BUILD_TOOLS & _names(root / directory)):
            yield f"/{directory}/{name} is there"
    for directory in _LEFT_OVER:
        if left := _names(root / directory) - _EMPTY_BUT_FOR:
            yield f"/{directory} has {', '.join(sorted(left)[:3])}"
    for path in _walk(root):
        where = path.relative_to(root)
        if path.suffix in (".h", ".hpp", ".a") and where.is_relative_to(_top(where)):
            yield f"/{where} is for compilers"
        about = path.lstat()
        if stat.S_ISLNK(about.st_mode) or str(where).startswith(_EVERYBODYS):
            continue
        if USER in (about.st_uid, about.st_gid) or about.st_mode & stat.S_IWOTH:
            yield f"/{where} can be written by the service"


def _names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()} if directory.is_dir() else set()


def _top(path: Path) -> Path | str:
    """The directory of headers that a file is in, or one that it is not in."""
    return next((top for top in _HEADERS if path.is_relative_to(top)), "nowhere")


def _walk(root: Path) -> Iterator[Path]:
    for directory, _, names in os.walk(root):
        yield Path(directory)
        yield from (Path(directory, name) for name in names)


def _of_packages(root: Path, locked: Mapping[str, str]) -> Iterator[str]:
    """Everything installed is in the lock at this version, or ours."""
    found = 0
    for metadata in root.glob("opt/noetl/lib/python3*/site-packages/*.dist-info/METADATA"):
        name, version = _name_and_version(metadata)
        found += 1
        if not name.startswith("noetl-") and locked.get(name) != version:
            yield f"{name} {version} is not what requirements.lock says: {locked.get(name, 'nothing')}"
        if name.startswith("noetl-") and '"url":"file:///source/' not in _direct_url(metadata):
            yield f"{name} {version} does not come from the repository"
    if not found:
        yield "/opt/noetl has no packages"


def _name_and_version(metadata: Path) -> tuple[str, str]:
    fields = dict(re.findall(r"^(Name|Version): (.+)$", metadata.read_text(encoding="utf-8"), re.MULTILINE))
    return re.sub(r"[-_.]+", "-", fields["Name"]).lower(), fields["Version"]


def _direct_url(metadata: Path) -> str:
    file = metadata.with_name("direct_url.json")
    return file.read_text(encoding="utf-8").replace('": "', '":"') if file.exists() else ""
