"""The words of the keychain."""

from __future__ import annotations

from collections.abc import Mapping

from noetl_core.playbook.sections import Key, Section
from noetl_core.playbook.shapes import Anything, Choice, Either, Flag, Map, Name, Text
from noetl_core.playbook.task_vocabulary import MAP, rendered

_MAP = rendered(MAP, "field: where its value is")
_SECRETS = {
    "provider": rendered(Text(), "who keeps the secrets"),
    "auth": rendered(Either(Text(), Map()), "the name of a credential"),
    "map": _MAP,
}
_SERVICE_ACCOUNT = rendered(Text(), "the credential with the key of the service account, or the key file as text")
_BY_KIND: Mapping[str, Mapping[str, Key]] = {
    "secrets": _SECRETS,
    "secret_manager": _SECRETS,
    "oauth2": {
        "endpoint": rendered(Text(), "where the token is asked for"),
        "method": rendered(Text(), "POST unless something else is written"),
        "headers": rendered(MAP, "headers of the request"),
        "data": rendered(Anything(), "the body of the request"),
    },
    "credential": {"credential": rendered(Text(), "the name of a credential")},
    "google_id_token": {
        "target_audience": rendered(Text(), "for whom the token is"),
        "service_account_secret": _SERVICE_ACCOUNT,
    },
    "google_oauth": {
        "service_account_secret": _SERVICE_ACCOUNT,
        "scopes": rendered(Anything(), "what the token is good for (cloud-platform)"),
    },
    "bearer": {"token": rendered(Text(), "the token")},
    "static": {"map": _MAP},
}
KEYCHAIN_KINDS = tuple(_BY_KIND)

_COMMON = {
    "name": Key(shape=Name(), required=True, says="the name by which templates know it"),
    "kind": Key(shape=Choice(words=KEYCHAIN_KINDS), required=True, says="where the secret comes from"),
    "scope": Key(shape=Choice(words=("global", "local")), says="shared by all executions, or not"),
    "auto_renew": Key(shape=Flag(), says="whether it is fetched again before it expires"),
}
KEYCHAIN_ENTRY = Section(
    name="keychain_entry",
    title="a keychain entry",
    keys=_COMMON,
    renamed={"type": "kind"},
    other=rendered(Anything(), ""),
    variants={
        kind: Section(name=f"keychain_{kind}", title=f"the keychain's {kind} entry", keys={**_COMMON, **keys})
        for kind, keys in _BY_KIND.items()
    },
)
