"""Containers of built images, run by runc as a kubelet would have them run.

The image's own user, entry point and variables; a read-only root without capabilities, the pod's volumes and memory
limit. They share the network of this machine: each pod has a loopback address of its own.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from scripts.deploy.rendered import Volume

PROGRAMS: Final = ("buildah", "runc")
_UNITS: Final = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}
_HIDDEN: Final = ("/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/sched_debug", "/sys/firmware")
_READ_ONLY: Final = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")


def missing() -> str | None:
    """Why containers cannot be run here, if they cannot."""
    absent = [program for program in PROGRAMS if shutil.which(program) is None]
    if absent:
        return f"{' and '.join(absent)} not on PATH (Debian: apt-get install {' '.join(PROGRAMS)})"
    if os.geteuid() != 0:
        return "root mounts images and starts runc: run it with sudo"
    return None


def output(*command: str | Path) -> str:
    """What a program prints; its complaint as an error."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command[:3]))}: {done.stderr.strip()}")
    return done.stdout.strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """A built image, with its files where they can be looked at."""

    name: str
    root: Path
    config: Mapping[str, Any]
    size_bytes: int

    @property
    def variables(self) -> dict[str, str]:
        return dict(variable.split("=", 1) for variable in self.config.get("Env", ()))

    @property
    def user(self) -> tuple[int, int]:
        """Its user and group; an image that names none has root's."""
        user, _, group = str(self.config.get("User") or "0:0").partition(":")
        return (int(user), int(group or 0)) if (user + group).isdecimal() else (0, 0)


@contextmanager
def mounted(name: str) -> Iterator[Image]:
    """An image of the local store; it must be there."""
    container = output("buildah", "from", "--pull-never", name)
    try:
        about = json.loads(output("buildah", "inspect", "--type", "image", name))
        listed = json.loads(output("buildah", "images", "--json", name))
        root = Path(output("buildah", "mount", container))
        yield Image(name=name, root=root, config=about["OCIv1"]["config"], size_bytes=_bytes(listed[0]["size"]))
    finally:
        output("buildah", "rm", container)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a pod asks of its container."""

    name: str
    image: Image
    command: Sequence[str] = ()
    """In place of the image's entry point."""
    arguments: Sequence[str] = ()
    variables: Mapping[str, str]
    volumes: Sequence[Volume] = ()
    hosts: Path
    memory: str | None = None


@contextmanager
def running(wanted: Wanted, directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    """runc in the foreground: it passes signals on, and ends as the container does. Its output is in `NAME.log`."""
    bundle = directory / f"{wanted.name}.bundle"
    bundle.mkdir()
    for volume in wanted.volumes:
        _own(volume, wanted.image.user[1])
    (bundle / "config.json").write_text(json.dumps(_specification(wanted)), encoding="utf-8")
    with log_of(wanted.name, directory).open("wb") as log:
        process = subprocess.Popen(["runc", "run", "--bundle", str(bundle), wanted.name], stdout=log, stderr=log)  # noqa: S603, S607
    try:
        yield process
    finally:
        if process.poll() is None:
            subprocess.run(["runc", "kill", wanted.name, "KILL"], check=False, stderr=subprocess.DEVNULL)  # noqa: S603, S607
            process.wait(30)
        shutil.rmtree(bundle, ignore_errors=True)


def log_of(name: str, directory: Path) -> Path:
    return directory / f"{name}.log"


def _own(volume: Volume, group: int) -> None:
    """As a kubelet does for fsGroup: Secrets are root's and can be read by the group, the rest is written by it."""
    os.chown(volume.place, 0, group)
    volume.place.chmod(0o2755 if volume.secret else 0o2777)
    for file in volume.place.iterdir() if volume.secret else ():
        os.chown(file, 0, group)
        file.chmod(0o440)


def _specification(wanted: Wanted) -> dict[str, Any]:
    image = wanted.image
    user, group = image.user
    words = wanted.command or [*(image.config.get("Entrypoint") or ()), *(wanted.arguments or image.config["Cmd"])]
    return {
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": user, "gid": group, "additionalGids": [group]},
            "args": list(words),
            "env": [f"{name}={value}" for name, value in {**image.variables, **wanted.variables}.items()],
            "cwd": image.config.get("WorkingDir") or "/",
            "capabilities": {},
            "noNewPrivileges": True,
            "rlimits": [{"type": "RLIMIT_NOFILE", "hard": 16384, "soft": 1024}],
        },
        "root": {"path": str(image.root), "readonly": True},
        "hostname": wanted.name,
        "mounts": [*_system_mounts(), *_pod_mounts(wanted)],
        "linux": {
            "namespaces": [{"type": kind} for kind in ("pid", "ipc", "uts", "mount")],
            "maskedPaths": list(_HIDDEN),
            "readonlyPaths": list(_READ_ONLY),
            "cgroupsPath": f"/noetl-images-check/{wanted.name}",
            "resources": {
                "devices": [{"allow": False, "access": "rwm"}],
                **({"memory": {"limit": _bytes(wanted.memory)}} if wanted.memory else {}),
            },
        },
    }


def _system_mounts() -> Iterator[dict[str, Any]]:
    """What every container has; its shared memory has the size that Kubernetes gives."""
    yield _mount("/proc", "proc")
    yield _mount("/dev", "tmpfs", "nosuid", "strictatime", "mode=755", "size=65536k")
    yield _mount("/dev/pts", "devpts", "nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5")
    yield _mount("/dev/shm", "tmpfs", "nosuid", "noexec", "nodev", "mode=1777", "size=65536k")  # noqa: S108
    yield _mount("/dev/mqueue", "mqueue", "nosuid", "noexec", "nodev")
    yield _mount("/sys", "sysfs", "nosuid", "noexec", "nodev", "ro")


def _pod_mounts(wanted: Wanted) -> Iterator[dict[str, Any]]:
    yield _bind("/etc/hosts", wanted.hosts, "ro")
    for volume in wanted.volumes:
        yield _bind(volume.path, volume.place, *(["ro"] if volume.secret else []))


def _mount(path: str, kind: str, *options: str) -> dict[str, Any]:
    return {"destination": path, "type": kind, "source": kind, "options": list(options)}


def _bind(path: str, source: Path, *options: str) -> dict[str, Any]:
    return {"destination": path, "type": "bind", "source": str(source), "options": ["rbind", *options]}


def _bytes(amount: str) -> int:
    """Of Kubernetes' `512Mi`, and of buildah's `603 MB`."""
    if amount[-2:] in _UNITS:
        return int(amount[:-2]) * _UNITS[amount[-2:]]
    number, unit = amount.split()
    return round(float(number) * {"B": 1, "KB": 1e3, "MB": 1e6, "GB": 1e9}[unit.upper()])
