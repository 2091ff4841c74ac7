"""Ends with 0 if the interpreter that runs this suits our environment, else with the reason. Any Python 3 reads it."""

import sys
import sysconfig
from importlib.util import find_spec


def unfit_because(version, can_make_environments, configured, prefix):
    # type: (tuple[int, int], bool, str, str) -> str
    """Empty if it is fit."""
    if version < (3, 11):
        return "older than 3.11"
    if not can_make_environments:
        return "without the modules venv and ensurepip"
    # Distributions optimise in ways of their own, and all of them do.
    if "--enable-optimizations" not in configured and prefix != "/usr":
        return "built without optimisation"
    return ""


def can_make_environments():
    # type: () -> bool
    """Debian has the modules in a package of their own."""
    return find_spec("venv") is not None and find_spec("ensurepip") is not None


def unfit():
    # type: () -> str
    """Of the interpreter that runs this."""
    return unfit_because(
        sys.version_info[:2],
        can_make_environments(),
        sysconfig.get_config_var("CONFIG_ARGS") or "",
        getattr(sys, "base_prefix", sys.prefix),
    )


if __name__ == "__main__":
    sys.exit(unfit() or 0)
