"""Scripts in object stores, through fsspec; what it needs for S3, GCS and Azure comes with the worker."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from noetl_worker.application.outcome import ErrorKind
from noetl_worker.tools.call_failed import failed

UNSUPPORTED = "SCRIPT_SOURCE_UNSUPPORTED"

SCHEMES: Mapping[str, str] = {"gcs": "gs", "gs": "gs", "s3": "s3", "azure": "abfs", "abfs": "abfs", "az": "abfs"}
"""By the type of a source or the scheme of its address: how fsspec calls it."""


def read_remote(uri: str, *, kind: str, options: Mapping[str, Any], max_bytes: int) -> bytes:
    """The first bytes of an object, one more than allowed at most; blocks. Raises `CallFailed`."""
    scheme = SCHEMES[kind]
    address = f"{scheme}://{uri.partition('://')[2] or uri}"
    if "::" in address:  # fsspec would open the file system behind it, such as that of the worker
        raise failed(ErrorKind.STORAGE_ACCESS, "SCRIPT_NOT_ALLOWED", f"{uri!r} names more than one place")
    try:
        fsspec = import_module("fsspec")
        with fsspec.open(address, "rb", **options) as file:
            data: bytes = file.read(max_bytes + 1)
            return data
    except ImportError as exc:
        message = f"scripts from {kind} need the package fsspec and its part for {scheme!r} on this worker"
        raise failed(ErrorKind.SCHEMA, UNSUPPORTED, message) from exc
    except FileNotFoundError as exc:
        raise failed(ErrorKind.NOT_FOUND, "SCRIPT_NOT_FOUND", f"there is no script {uri!r}") from exc
    except PermissionError as exc:
        raise failed(ErrorKind.AUTH, "SCRIPT_NOT_ALLOWED", f"the script {uri!r} may not be read") from exc
    except Exception as exc:  # Every store has errors of its own; their texts may have secrets in them.
        message = f"the script {uri!r} cannot be read: {type(exc).__name__}"
        raise failed(ErrorKind.STORAGE_ACCESS, "SCRIPT_NOT_READABLE", message, retryable=True) from exc
