"""Running a server that refuses to be root, when root is what we are, as it often is in containers."""

import os
import pwd
import stat
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from noetl_cli.dev.errors import ServerMissing
from noetl_cli.dev.spawn import launch_command

_OVERFLOW_UID = 65_534
_PREFERRED = ("postgres", "daemon", "nobody")


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Whom a server runs as, and who must own its files for that.

    `self`: as we are. `namespace`: still us, under another number inside a user namespace, so that our files
    and private directories stay reachable. `switch`: another user, who must be able to reach everything.
    """

    kind: Literal["self", "namespace", "switch"]
    uid: int
    gid: int

    @property
    def launch_options(self) -> tuple[str, ...]:
        """What the launcher must do before it becomes the server."""
        match self.kind:
            case "self":
                return ()
            case "namespace":
                return ("--namespace", f"{self.uid}:{self.gid}")
            case "switch":
                return ("--become", f"{self.uid}:{self.gid}")

    def give(self, path: Path) -> None:
        """Make the account the owner of a file or directory, with all that is in it."""
        uid, gid = (self.uid, self.gid) if self.kind == "switch" else (os.geteuid(), os.getegid())
        if path.lstat().st_uid == uid:
            return
        for directory, _, names in os.walk(path):
            for name in names:
                os.chown(Path(directory) / name, uid, gid, follow_symlinks=False)
            os.chown(directory, uid, gid, follow_symlinks=False)
        os.chown(path, uid, gid, follow_symlinks=False)  # last: an owner that is right means all are

    def check_reach(self, path: Path) -> None:
        """Refuse a place that another user could not get to, and say which directory bars the way."""
        if self.kind != "switch":
            return
        for directory in path.resolve().parents:
            if not directory.exists():
                continue  # we shall make it, and let others enter it
            status = directory.stat()
            if not status.st_mode & stat.S_IXOTH and status.st_uid != self.uid:
                raise ServerMissing(
                    f"PostgreSQL must not run as root, and user {self.uid} cannot enter {directory} to reach "
                    f"{path}: run as an ordinary user, or allow entering it (chmod o+x)"
                )


def unprivileged_account(program: Path) -> Account:
    """The account under which `program` can run: ours, unless we are root."""
    if os.geteuid() != 0:
        return Account(kind="self", uid=os.geteuid(), gid=os.getegid())
    account = _namespace_account(program)
    if account is None:
        account = switched_account()
        account.check_reach(program)
    return account


def switched_account() -> Account:
    """An ordinary user to switch to."""
    entry = _ordinary_user()
    return Account(kind="switch", uid=entry.pw_uid, gid=entry.pw_gid)


@cache
def _namespace_account(program: Path) -> Account | None:
    """None where user namespaces are not to be had, as in many containers."""
    entry = _ordinary_user()
    account = Account(kind="namespace", uid=entry.pw_uid, gid=entry.pw_gid)
    probe = subprocess.run(
        launch_command([str(program), "--version"], options=account.launch_options),
        check=False,
        capture_output=True,
    )
    return account if probe.returncode == 0 else None


def _ordinary_user() -> pwd.struct_passwd:
    """Some user with a name, which `initdb` insists on; best one that owns nothing else of interest."""
    by_name = {entry.pw_name: entry for entry in pwd.getpwall() if entry.pw_uid != 0}
    for name in _PREFERRED:
        if name in by_name:
            return by_name[name]
    others = sorted(by_name.values(), key=lambda entry: (entry.pw_uid == _OVERFLOW_UID, entry.pw_uid))
    if not others:
        raise ServerMissing("PostgreSQL must not run as root, and this machine has no other user")
    return others[0]
