"""The nats tool: one operation on a server of the user's own."""

from __future__ import annotations

from nats import errors
from nats.js import errors as js_errors
from noetl_core.errors import NoetlError

from noetl_worker.application.credentials import AuthInvalid, Credentials
from noetl_worker.application.frame_limits import CallLimit
from noetl_worker.application.outcome import ErrorKind, Outcome
from noetl_worker.application.tool_call import ToolCall
from noetl_worker.tools.call_failed import CallFailed, credential_failed, failed, misconfigured, without_secrets
from noetl_worker.tools.connection_errors import connection_trouble
from noetl_worker.tools.nats_connections import NatsConnections, NatsTarget, nats_target
from noetl_worker.tools.nats_operations import OPERATIONS, NatsCall
from noetl_worker.tools.tool_config import ToolConfig

DEFAULT_TIMEOUT_SECONDS = 30.0

_PARAMETERS = (
    *("bucket", "key", "name", "value", "data", "encoding", "pattern"),
    *("stream", "subject", "headers", "seq"),
)


class NatsTool:
    """Keys and values, objects and messages; only ever on servers that a credential names."""

    def __init__(
        self,
        connections: NatsConnections,
        credentials: Credentials,
        *,
        default_timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
    ) -> None:
        self._connections = connections
        self._credentials = credentials
        self._default_timeout_seconds = default_timeout_seconds

    async def run(self, call: ToolCall) -> Outcome:
        """What the operation gave; a key that is not there is a result with the status `not_found`."""
        config = ToolConfig(call)
        try:
            outcome = await self._outcome(config)
        except CallFailed as exc:
            outcome = exc.outcome
        return without_secrets(outcome, config.secrets)

    async def _outcome(self, config: ToolConfig) -> Outcome:
        call = self._call(config)
        target = await self._target(config)
        timeout_seconds = config.timeout_seconds(default=self._default_timeout_seconds)
        try:
            with CallLimit(timeout_seconds):
                async with self._connections.connection(target) as client:
                    jetstream = client.jetstream(timeout=timeout_seconds)
                    return Outcome(data=await OPERATIONS[call.operation](jetstream, call))
        except (errors.Error, OSError) as exc:
            return nats_failure(exc, timeout_seconds=timeout_seconds)
        except NoetlError as exc:  # too many connections, or the worker is stopping
            return Outcome.failed(kind=ErrorKind.CONNECTION, code="NATS_POOL_FULL", message=exc.message)

    def _call(self, config: ToolConfig) -> NatsCall:
        operation = config.required_text("operation")
        if operation not in OPERATIONS:
            raise misconfigured(f"there is no operation {operation!r}, only {', '.join(OPERATIONS)}")
        key = config.call.names.get("idempotency_key")
        given = config.call.rendered_input()
        written = {name: config.value(name) if name in config else given.get(name) for name in _PARAMETERS}
        return NatsCall(
            operation=operation,
            parameters={
                name: value
                for name, value in written.items()
                if value is not None or name in config.call.config or name in given
            },
            limits=self._connections.limits,
            idempotency_key=None if key is None else str(key),
        )

    async def _target(self, config: ToolConfig) -> NatsTarget:
        auth = await config.auth(self._credentials)
        try:
            credential = auth.one()
        except AuthInvalid as exc:
            raise credential_failed(exc) from exc
        if credential is None:
            raise failed(ErrorKind.AUTH, "AUTH_MISSING", "a nats step needs `auth`")
        return nats_target(credential, config.owner)


def nats_failure(error: Exception, *, timeout_seconds: float) -> Outcome:
    """The error of an operation that the server refused, or never heard of."""
    match error:
        case js_errors.BucketNotFoundError():
            return _failed(ErrorKind.NOT_FOUND, "NATS_BUCKET_NOT_FOUND", "there is no such bucket")
        case js_errors.NotFoundError(err_code=code, description=description):
            return _failed(ErrorKind.NOT_FOUND, f"NATS_{code or 404}", description or "not found")
        case js_errors.InvalidKeyError() | js_errors.InvalidBucketNameError() | js_errors.InvalidObjectNameError():
            return _failed(ErrorKind.SCHEMA, "NATS_INVALID_NAME", "the bucket, key or object cannot be called so")
        case js_errors.ServiceUnavailableError():
            return _failed(ErrorKind.SERVER_ERROR, "NATS_503", "JetStream is not available")
        case js_errors.NoStreamResponseError() | errors.NoRespondersError():
            return _failed(ErrorKind.NOT_FOUND, "NATS_NO_STREAM", "no stream takes this subject")
        case js_errors.APIError(code=status, err_code=code, description=description):
            kind = ErrorKind.SERVER_ERROR if (status or 0) >= 500 else ErrorKind.CLIENT_ERROR
            return _failed(kind, f"NATS_{code or status}", description or "the server refused the operation")
        case errors.MaxPayloadError():
            return _failed(ErrorKind.STORAGE_QUOTA, "NATS_MAX_PAYLOAD", "the value is larger than the server takes")
        case errors.AuthorizationError():
            return _failed(ErrorKind.AUTH, "NATS_AUTH", "the server does not accept the credential")
        case TimeoutError():
            message = f"the server did not answer within {timeout_seconds:g} s"
            return _failed(ErrorKind.TIMEOUT, "TIMEOUT", message)
    if "authorization" in str(error).lower() or "authentication" in str(error).lower():
        return _failed(ErrorKind.AUTH, "NATS_AUTH", "the server does not accept the credential")
    trouble = connection_trouble(error)
    return Outcome.failed(
        kind=ErrorKind.CONNECTION, code=trouble.code, message=trouble.message, retryable=trouble.retryable
    )


def _failed(kind: ErrorKind, code: str, message: str) -> Outcome:
    return Outcome.failed(kind=kind, code=code, message=message)
