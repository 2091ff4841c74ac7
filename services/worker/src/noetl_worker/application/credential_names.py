"""Recognize what looks like a credential, by its name, so that no event ever carries one."""

import re

_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
_SECRET_WORDS = frozenset(
    {
        *("apikey", "authorization", "bearer", "cookie", "credential", "credentials", "passphrase", "passwd"),
        *("password", "pwd", "secret", "secrets"),
    }
)
_KEYS = frozenset({"access", "api", "encryption", "private", "secret", "signing"})
"""`private_key` is a credential, `sort_key` is not."""
_PLACES = frozenset({"continuation", "cursor", "delta", "next", "page", "resume", "sync"})
"""`next_page_token` says where to read on; routing may need it, and it opens nothing."""

_ASSIGNED = re.compile(
    r"""((?:password|passwd|secret|token|api[_-]?key|authorization)["']?\s*[=:]\s*["']?)(?:(?:bearer|basic)\s+)?[^\s"',;&]+""",
    re.IGNORECASE,
)
_IN_URL = re.compile(r"(\w://[^\s:/@]*:)[^\s/@]+@")


def is_credential_name(name: str) -> bool:
    """Whether a value under this name is likely to be a secret: `password`, `apiKey`, `X-Auth-Token`."""
    words = [word.lower() for word in _WORDS.findall(name)]
    if not _SECRET_WORDS.isdisjoint(words):
        return True
    match words[-2:]:
        case [*before, "token" | "tokens"]:
            return _PLACES.isdisjoint(before)
        case [kind, "key" | "keys"]:
            return kind in _KEYS
        case _:
            return False


def without_credentials(text: str) -> str:
    """A message in which `password=…`, `Authorization: …` and passwords in addresses are blotted out."""
    return _IN_URL.sub(r"\1***@", _ASSIGNED.sub(r"\1***", text))
