"""Read files of an S3 bucket, tried again when it fails.

Settings are those that boto3 and MLflow go by: ``AWS_*`` variables and files, and
``MLFLOW_S3_ENDPOINT_URL``, ``MLFLOW_S3_IGNORE_TLS``, ``MLFLOW_BOTO_CLIENT_ADDRESSING_STYLE``, so
that what was brought there is found again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from radt.errors import ArchiveError
from radt.masking import masked

_PART_BYTES = 16 * 2**20
_CONCURRENCY = 4
_TRIES = 5
_CONNECT_TIMEOUT_S = 10
_READ_TIMEOUT_S = 60
_MISSING = frozenset({"404", "NoSuchKey", "NotFound"})


class S3Error(ArchiveError):
    """A request to S3 failed for good; ``missing``: there is no such object."""

    def __init__(self, message: str, remedy: str, *, missing: bool = False) -> None:
        super().__init__(message, remedy)
        self.missing = missing


@dataclass(frozen=True, slots=True)
class S3Folder:
    """A prefix of keys in a bucket."""

    bucket: str
    prefix: str

    @classmethod
    def of(cls, uri: str) -> S3Folder:
        """What ``s3://bucket/prefix`` stands for.

        Raises:
            ArchiveError: There is no bucket in it.
        """
        parts = urlsplit(uri)
        if not parts.netloc or "@" in parts.netloc:
            raise ArchiveError(
                f"{masked(uri)} names no bucket",
                "Write s3://bucket/prefix; keys are taken from AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY",
            )
        return cls(parts.netloc, parts.path.strip("/"))

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")

    def key(self, path: str) -> str:
        return f"{self.prefix}/{path}".lstrip("/")

    def fetch(self, path: str, target: Path) -> None:
        """Copy an object to a file.

        Raises:
            S3Error: It is not there or cannot be read.
            OSError: The file cannot be written.
        """
        with _translated(f"{self}/{path}"):
            _client().download_file(self.bucket, self.key(path), str(target), Config=_transfer())

    def paths(self) -> Iterator[str]:
        """All there is below the prefix, as paths from it.

        Raises:
            S3Error: It cannot be listed.
        """
        start = f"{self.prefix}/" if self.prefix else ""
        with _translated(str(self)):
            pages = _client().get_paginator("list_objects_v2")
            for page in pages.paginate(Bucket=self.bucket, Prefix=start):
                for one in page.get("Contents", ()):
                    yield str(one["Key"]).removeprefix(start)


@contextmanager
def _translated(where: str) -> Iterator[None]:
    from boto3.exceptions import Boto3Error
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except (Boto3Error, BotoCoreError, ClientError) as error:
        raise _s3_error(where, error) from error


def _s3_error(where: str, error: BaseException) -> S3Error:
    code = str(getattr(error, "response", {}).get("Error", {}).get("Code", ""))
    if code in _MISSING:
        return S3Error(f"there is no {where}", "Check the address", missing=True)
    reason = masked((str(error).strip() or type(error).__name__).splitlines()[0])
    return S3Error(
        f"{where}: {reason}",
        "Check the keys (AWS_ACCESS_KEY_ID …) and the server's address (AWS_ENDPOINT_URL or "
        "MLFLOW_S3_ENDPOINT_URL)",
    )


def _transfer() -> Any:
    from boto3.s3.transfer import TransferConfig

    return TransferConfig(
        multipart_threshold=_PART_BYTES,
        multipart_chunksize=_PART_BYTES,
        max_concurrency=_CONCURRENCY,
    )


def _client() -> Any:
    names = (
        "MLFLOW_S3_ENDPOINT_URL",
        "MLFLOW_S3_IGNORE_TLS",
        "MLFLOW_BOTO_CLIENT_ADDRESSING_STYLE",
        *sorted(name for name in os.environ if name.startswith("AWS_")),
    )
    return _client_for(tuple((name, os.environ.get(name, "")) for name in names))


@cache
def _client_for(variables: tuple[tuple[str, str], ...]) -> Any:
    """One for each setting of the variables: making one takes a fifth of a second."""
    import boto3
    from botocore.config import Config

    given = dict(variables)
    ignore_tls = given["MLFLOW_S3_IGNORE_TLS"].lower() in ("true", "1")
    return boto3.session.Session().client(
        "s3",
        endpoint_url=given["MLFLOW_S3_ENDPOINT_URL"] or None,
        verify=False if ignore_tls else None,
        config=Config(
            signature_version="s3v4",
            # Files are checked by the manifest's SHA-256 sums, whatever the server knows of.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            s3={"addressing_style": given["MLFLOW_BOTO_CLIENT_ADDRESSING_STYLE"] or "auto"},
            retries={"mode": "standard", "total_max_attempts": _TRIES},
            connect_timeout=_CONNECT_TIMEOUT_S,
            read_timeout=_READ_TIMEOUT_S,
        ),
    )
