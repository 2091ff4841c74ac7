"""Opens a bucket of S3, GCS or Azure; each is asked for in the words of its own library.

The libraries are imported when they are needed: a service with a payload directory pays for none of them.
"""

import os
from collections.abc import Awaitable, Callable, Mapping
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

from noetl_core.errors import InvalidInput

from noetl_adapters.payload.fsspec_bucket import PART_BYTES, FsspecBucket

ENDPOINT_VARIABLE = "NOETL_PAYLOAD_ENDPOINT"
"""Address of a server that is not the provider's own: SeaweedFS, MinIO, an emulator."""

SCHEMES = ("s3", "gs", "az")

_CONCURRENT_PARTS = 4
_CLOSE_SECONDS = 10.0
_COMMON = {"skip_instance_cache": True, "use_listings_cache": False}


def open_bucket(url: str, environment: Mapping[str, str]) -> FsspecBucket:
    """The bucket and prefix of an address such as `s3://bucket/prefix`; nothing is asked of the server yet."""
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES or not parts.hostname or parts.query or parts.fragment or "@" in parts.netloc:
        raise InvalidInput(
            "a payload bucket is addressed as s3://bucket/prefix, gs://bucket/prefix or az://container/prefix"
        )
    root = f"{parts.netloc}{parts.path}"
    opened = {"s3": _s3, "gs": _gcs, "az": _azure}[parts.scheme](environment)
    return FsspecBucket(
        opened.file_system,
        root,
        name=f"{parts.scheme}://{root}",
        upload_options=opened.upload_options,
        close=opened.close,
    )


class _Opened:
    def __init__(self, file_system: Any, close: Any, **upload_options: object) -> None:
        self.file_system = file_system
        self.close = close
        self.upload_options = upload_options


def _s3(environment: Mapping[str, str]) -> _Opened:
    s3fs = import_module("s3fs")
    endpoint = environment.get(ENDPOINT_VARIABLE)
    region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION")
    client: dict[str, object] = {"region_name": region} if region else {}
    if endpoint:
        client["endpoint_url"] = endpoint
    file_system = s3fs.S3FileSystem(
        key=environment.get("AWS_ACCESS_KEY_ID"),
        secret=environment.get("AWS_SECRET_ACCESS_KEY"),
        token=environment.get("AWS_SESSION_TOKEN"),
        client_kwargs=client,
        # Callers try again by themselves, and want to know soon.
        config_kwargs={"retries": {"max_attempts": 2, "mode": "standard"}, "connect_timeout": 5, "read_timeout": 60},
        max_concurrency=_CONCURRENT_PARTS,
        **_COMMON,
    )

    def close() -> None:
        if file_system._s3 is not None:
            _finish(file_system, file_system._s3.close)

    return _Opened(file_system, close, chunksize=PART_BYTES, max_concurrency=_CONCURRENT_PARTS)


def _gcs(environment: Mapping[str, str]) -> _Opened:
    # Read when the module is imported. It asks every bucket for its kind first, which costs a minute where
    # nobody answers that question.
    os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
    gcsfs = import_module("gcsfs")
    endpoint = environment.get(ENDPOINT_VARIABLE)
    credentials = environment.get("GOOGLE_APPLICATION_CREDENTIALS")
    # Whoever names a server of his own and no credentials has an emulator.
    token = credentials or ("anon" if endpoint else None)
    file_system = gcsfs.GCSFileSystem(
        token=token, endpoint_url=endpoint, project=environment.get("GOOGLE_CLOUD_PROJECT", ""), **_COMMON
    )

    def close() -> None:
        if file_system._session is not None:
            _finish(file_system, file_system._session.close)

    return _Opened(file_system, close, chunksize=PART_BYTES)


def _azure(environment: Mapping[str, str]) -> _Opened:
    adlfs = import_module("adlfs")
    file_system = adlfs.AzureBlobFileSystem(
        connection_string=environment.get("AZURE_STORAGE_CONNECTION_STRING"),
        account_name=environment.get("AZURE_STORAGE_ACCOUNT_NAME"),
        account_key=environment.get("AZURE_STORAGE_ACCOUNT_KEY"),
        blocksize=PART_BYTES,
        max_concurrency=_CONCURRENT_PARTS,
        **_COMMON,
    )

    def close() -> None:
        _finish(file_system, file_system.service_client.close)

    return _Opened(file_system, close, max_concurrency=_CONCURRENT_PARTS)


def _finish(file_system: Any, close: Callable[[], Awaitable[object]]) -> None:
    """Connections belong to the loop that the libraries share; they are closed there, and now."""
    import_module("fsspec.asyn").sync(file_system.loop, close, timeout=_CLOSE_SECONDS)
