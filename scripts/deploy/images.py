"""Builds the images of all services under the names that the charts give them. Run by `make images`.

With whatever builder is there: Docker, podman or buildah. Where no registry can be reached, `--base local` makes the
base image from Debian's packages; the Dockerfiles are the same.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml

from scripts.deploy.check import CHARTS, ROOT, SERVICES

LOGS: Final = ROOT / "build" / "images"
LOCAL_BASE: Final = "localhost/noetl-python:3.11-bookworm"
_LOCAL_BASE_FILE: Final = "FROM scratch\nADD base.tar /\nRUN ln -s /usr/bin/python3 /usr/local/bin/python\n"
_PACKAGES: Final = "python3,python3-venv,ca-certificates,tzdata"
_CERTIFICATES: Final = "/etc/ssl/certs/ca-certificates.crt"
_SHOWN_LINES: Final = 25


class CannotBuild(Exception):
    """Something is missing, or a build failed; the text says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Builder:
    """A program that makes an image of a Dockerfile."""

    name: str
    command: tuple[str, ...]
    probe: tuple[str, ...]
    mounts_files: bool
    """Whether a build may see a file of this machine that does not come into the image."""


BUILDERS: Final = (
    Builder(name="docker", command=("docker", "build"), probe=("docker", "info"), mounts_files=False),
    Builder(name="podman", command=("podman", "build", "--layers"), probe=("podman", "info"), mounts_files=True),
    Builder(
        name="buildah",
        # needs no more of a machine than root
        command=("buildah", "build", "--layers", "--isolation", "chroot"),
        probe=("buildah", "info"),
        mounts_files=True,
    ),
)


def image_name(service: str) -> str:
    """As the chart of the service has it."""
    values = yaml.safe_load((CHARTS / service / "values.yaml").read_text(encoding="utf-8"))
    chart = yaml.safe_load((CHARTS / service / "Chart.yaml").read_text(encoding="utf-8"))
    return f"{values['image']['repository']}:{values['image'].get('tag') or chart['appVersion']}"


def find_builder(name: str | None, answers: Callable[[Sequence[str]], bool]) -> Builder:
    """The one that is named, or the first that works here."""
    tried = [builder for builder in BUILDERS if name in (None, builder.name)]
    for builder in tried:
        if answers(builder.probe):
            return builder
    raise CannotBuild(
        f"no builder of images answers here (tried: {', '.join(builder.name for builder in tried)}). Start a Docker"
        " engine, or install one that needs none (Debian: apt-get install buildah, and run this as root)"
    )


def build_command(
    builder: Builder, service: str, *, base: str | None, index_url: str | None, certificates: str | None
) -> list[str]:
    """The command line that builds one image, from the root of the repository."""
    chosen = {"PYTHON": base, "INDEX_URL": index_url}
    arguments = [f"--build-arg={name}={value}" for name, value in chosen.items() if value]
    trusted = [f"--volume={certificates}:{_CERTIFICATES}:ro"] if certificates else []
    file = f"--file=services/{service}/Dockerfile"
    return [*builder.command, *trusted, *arguments, file, f"--tag={image_name(service)}", "."]


def make_local_base(builder: Builder) -> None:
    """Debian with its own Python, as small as that goes."""
    if shutil.which("mmdebstrap") is None:
        raise CannotBuild("a local base image is made by mmdebstrap (Debian: apt-get install mmdebstrap)")
    with tempfile.TemporaryDirectory(prefix="noetl-base-") as directory:
        Path(directory, "Dockerfile").write_text(_LOCAL_BASE_FILE, encoding="utf-8")
        archive = Path(directory, "base.tar")
        wanted = f"--include={_PACKAGES}"
        _logged("debian", ["mmdebstrap", "--variant=minbase", wanted, "bookworm", str(archive)], ROOT)
        _logged("base", [*builder.command, f"--tag={LOCAL_BASE}", "."], Path(directory))


def _has_image(builder: Builder, name: str) -> bool:
    return _answers((builder.name, "inspect", "--type", "image", name))


def _answers(command: Sequence[str]) -> bool:
    if shutil.which(command[0]) is None:
        return False
    silent = subprocess.DEVNULL
    return subprocess.run(command, stdout=silent, stderr=silent, check=False).returncode == 0  # noqa: S603


def _logged(name: str, command: Sequence[str], directory: Path) -> None:
    """Run it with its output in a file, whose end is shown when it fails."""
    LOGS.mkdir(parents=True, exist_ok=True)
    log = LOGS / f"{name}.log"
    _say(f"building {name} … (log: {log.relative_to(ROOT)})")
    began = time.monotonic()
    with log.open("wb") as output:
        done = subprocess.run(command, cwd=directory, stdout=output, stderr=output, check=False)  # noqa: S603
    if done.returncode != 0:
        last = log.read_text(encoding="utf-8", errors="replace").splitlines()[-_SHOWN_LINES:]
        raise CannotBuild("\n".join([*last, f"{name} could not be built: {log}"]))
    _say(f"  {time.monotonic() - began:.0f} s")


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _options(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m scripts.deploy.images", description=__doc__)
    parser.add_argument(
        "--only", action="append", choices=SERVICES, help="build this one (again for more); else all six"
    )
    parser.add_argument("--builder", choices=[builder.name for builder in BUILDERS], help="else the first that answers")
    parser.add_argument(
        "--base",
        metavar="IMAGE",
        help="base image in place of the Dockerfiles'; `local` makes one from Debian's packages",
    )
    parser.add_argument("--index-url", metavar="URL", help="package index in place of PyPI, without a password in it")
    parser.add_argument(
        "--certificates",
        metavar="FILE",
        help="trusted while an image is built, and not kept in it: for a mirror with its own authority"
        " (podman and buildah; there the default is $SSL_CERT_FILE)",
    )
    return parser.parse_args(words)


def build(options: argparse.Namespace) -> None:
    """Every image that is asked for, one after the other."""
    builder = find_builder(options.builder, _answers)
    certificates = options.certificates
    if certificates is None and builder.mounts_files:
        certificates = os.environ.get("SSL_CERT_FILE")
    if certificates and not builder.mounts_files:
        raise CannotBuild(f"{builder.name} takes no --certificates: name a --base image that trusts them")
    base = options.base
    if base == "local":
        base = LOCAL_BASE
        if not _has_image(builder, base):
            make_local_base(builder)
    for service in options.only or SERVICES:
        command = build_command(builder, service, base=base, index_url=options.index_url, certificates=certificates)
        _logged(service, command, ROOT)
        _say(f"  {image_name(service)}")


def main(words: Sequence[str] | None = None) -> int:
    """Exit code 1 when something could not be built."""
    try:
        build(_options(words))
    except CannotBuild as exc:
        sys.stderr.write(f"{exc}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
