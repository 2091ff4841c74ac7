"""The keychain of a worker with all its sources, opened together and closed together."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.metadata import EntryPoint

from noetl_worker.application.credentials import Credentials
from noetl_worker.application.kept_secrets import KeptSecrets
from noetl_worker.application.keychain import Keychain, SecretSource
from noetl_worker.tools.google_tokens import DEFAULT_CREDENTIAL, GoogleTokens, Sign
from noetl_worker.tools.http_clients import HttpClients, HttpLimits
from noetl_worker.tools.keychain_plugins import installed_sources, load_sources
from noetl_worker.tools.keychain_sources import (
    BearerSource,
    CredentialSource,
    OAuth2Source,
    PluginSource,
    SecretsSource,
    StaticSource,
)

_MAX_ANSWER_BYTES = 1024 * 1024


@asynccontextmanager
async def open_keychain(
    *,
    credentials: Credentials,
    variables: Mapping[str, str],
    sign: Sign | None = None,
    count: Callable[[str, str], None] = lambda kind, outcome: None,
    plugins: Iterable[EntryPoint] | None = None,
    kept: KeptSecrets | None = None,
) -> AsyncIterator[Keychain]:
    """A source for every kind of the language; those that need a cloud have one if a package provides it."""
    async with AsyncExitStack() as stack:
        # Connections of its own: a token can be had while all those of http steps are busy.
        clients = await stack.enter_async_context(HttpClients(HttpLimits(max_response_bytes=_MAX_ANSWER_BYTES)))
        providers = await load_sources(
            installed_sources() if plugins is None else plugins,
            credentials=credentials,
            variables=variables,
            stack=stack,
        )
        secrets = SecretsSource(credentials, providers)
        oauth2 = OAuth2Source(clients)
        google: SecretSource = PluginSource(providers)
        if sign is not None:
            named = variables.get(DEFAULT_CREDENTIAL, "")
            google = GoogleTokens(oauth2, credentials, sign, providers=providers, default_credential=named)
        sources: dict[str, SecretSource] = {
            "bearer": BearerSource(),
            "credential": CredentialSource(credentials),
            "google_id_token": google,
            "google_oauth": google,
            "oauth2": oauth2,
            "secret_manager": secrets,
            "secrets": secrets,
            "static": StaticSource(),
        }
        yield Keychain(sources, count=count, kept=kept)
