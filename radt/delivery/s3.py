"""Put, fetch and list files in S3, with the settings of boto3 and MLflow.

Settings are the ``AWS_*`` variables and files, ``MLFLOW_S3_ENDPOINT_URL``,
``MLFLOW_S3_IGNORE_TLS``, ``MLFLOW_BOTO_CLIENT_ADDRESSING_STYLE``,
``MLFLOW_EXPERIMENTAL_S3_SIGNATURE_VERSION``, ``MLFLOW_S3_UPLOAD_EXTRA_ARGS`` and
``MLFLOW_S3_EXPECTED_BUCKET_OWNER``.

Uploads work with every S3 server: Content-MD5 on each request, which the server verifies, and parts
of at least 16 MiB for large files. The CRC trailers that boto3 sends by default end up inside the
files on SeaweedFS before 3.85 (seaweedfs#6548) and are refused by others.
"""

from __future__ import annotations

import contextlib
import json
import mimetypes
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

from radt.delivery.archive import FileMissingError
from radt.errors import ArchiveError
from radt.masking import masked

#: Size of a part of a large file, and thus the maximum part of a file in memory at a time.
PART_BYTES = 16 * 2**20
#: Maximum number of parts in Swift; AWS allows 10,000.
MAX_PARTS = 900
_DOWNLOADS_AT_A_TIME = 4
_CONNECT_TIMEOUT_S = 10
_READ_TIMEOUT_S = 60
_READ_ATTEMPTS = 5
#: Few attempts: the uploader retries later and serves other runs meanwhile.
_WRITE_ATTEMPTS = 3
_MISSING = frozenset({"404", "NoSuchKey", "NotFound"})
#: Errors that persist despite retries.
FINAL = frozenset({"EntityTooLarge", "KeyTooLongError", "InvalidURI"})
_REASONS = {
    "AccessDenied": "S3 refuses the credentials for this bucket (AccessDenied)",
    "InvalidAccessKeyId": "S3 does not know the access key (AWS_ACCESS_KEY_ID)",
    "NoSuchBucket": "S3 does not have the bucket (NoSuchBucket)",
    "SignatureDoesNotMatch": "S3 refuses the secret key (AWS_SECRET_ACCESS_KEY)",
}
_REMEDY = (
    "Check the keys (AWS_ACCESS_KEY_ID …) and the server's address (AWS_ENDPOINT_URL or "
    "MLFLOW_S3_ENDPOINT_URL)"
)
_VARIABLES = (
    "MLFLOW_S3_ENDPOINT_URL",
    "MLFLOW_S3_IGNORE_TLS",
    "MLFLOW_BOTO_CLIENT_ADDRESSING_STYLE",
    "MLFLOW_EXPERIMENTAL_S3_SIGNATURE_VERSION",
)


class S3Error(ArchiveError):
    """A request to S3 failed.

    ``reason`` is the message without the address; ``code`` is S3's, empty if there was no answer.
    """

    def __init__(self, where: str, reason: str, code: str = "") -> None:
        super().__init__(f"{where}: {reason}", _REMEDY)
        self.reason = reason
        self.code = code


@dataclass(frozen=True, slots=True)
class S3Folder:
    """A prefix in a bucket (`radt.delivery.archive.locations.Location`).

    Every method raises `S3Error` if S3 fails.
    """

    bucket: str
    prefix: str

    @classmethod
    def of(cls, uri: str) -> Self:
        """Return the folder of a URI ``s3://bucket/prefix``.

        Raises:
            ArchiveError: The URI does not name a bucket.
        """
        parts = urlsplit(uri, allow_fragments=False)
        if not parts.netloc or "@" in parts.netloc:
            raise ArchiveError(
                f"Expected s3://bucket/prefix, got {masked(uri)}",
                "Give the keys in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
            )
        return cls(parts.netloc, parts.path.strip("/"))

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")

    def below(self, folder: str) -> Self:
        return replace(self, prefix=self._key(folder))

    def _key(self, path: str) -> str:
        return f"{self.prefix}/{path}".lstrip("/")

    # -- reading ----------------------------------------------------------------------------------

    def fetch(self, path: str, target: Path) -> None:
        """Copy an object to a file."""
        where = f"{self}/{path}"
        try:
            with _translated(where):
                client = _client(_READ_ATTEMPTS)
                client.download_file(
                    self.bucket, self._key(path), str(target), Config=_transfer(PART_BYTES)
                )
        except S3Error as error:
            if error.code in _MISSING:
                raise FileMissingError(f"{where} does not exist", "Check its address") from error
            raise
        except OSError as error:
            raise ArchiveError(
                f"{where} cannot be copied to this machine: {error.strerror or error}",
                "Free some disk space, or set TMPDIR to another folder",
            ) from error

    def paths(self) -> Iterator[str]:
        """Yield all paths below the prefix, relative to it."""
        return (path for path, _ in self._entries())

    def sizes(self) -> dict[str, int]:
        """Return the sizes in bytes of the objects directly below the prefix, by name."""
        return dict(self._entries(Delimiter="/"))

    def _entries(self, **options: str) -> Iterator[tuple[str, int]]:
        start = f"{self.prefix}/" if self.prefix else ""
        with _translated(str(self)):
            pages = _client(_READ_ATTEMPTS).get_paginator("list_objects_v2")
            for page in pages.paginate(Bucket=self.bucket, Prefix=start, **options):
                for entry in page.get("Contents", ()):
                    yield str(entry["Key"]).removeprefix(start), int(entry["Size"])

    # -- writing ----------------------------------------------------------------------------------

    def put(self, path: str, file: Path) -> None:
        """Upload a file atomically to ``path``, replacing an existing one."""
        key = self._key(path)
        size_bytes = file.stat().st_size
        with _translated(f"{self}/{path}"), file.open("rb") as content:
            client = _client(_WRITE_ATTEMPTS)
            if size_bytes > PART_BYTES:
                self._abort_earlier(client, key)
            try:
                client.upload_fileobj(
                    *(content, self.bucket, key),
                    ExtraArgs=_owner() | _extra(file),
                    Config=_transfer(max(PART_BYTES, -(-size_bytes // MAX_PARTS)), threads=False),
                )
            except ValueError as error:  # a name that boto3 does not know
                reason = f"MLFLOW_S3_UPLOAD_EXTRA_ARGS: {error}"
                raise S3Error(f"{self}/{path}", reason) from error

    def _abort_earlier(self, client: Any, key: str) -> None:
        """Abort unfinished uploads of earlier, killed processes at the same key."""
        from botocore.exceptions import ClientError

        target = {"Bucket": self.bucket, **_owner()}
        try:
            for page in client.get_paginator("list_multipart_uploads").paginate(
                **target, Prefix=key
            ):
                for upload in page.get("Uploads", ()):
                    if upload["Key"] == key:  # the prefix of others, too
                        number = upload["UploadId"]
                        client.abort_multipart_upload(**target, Key=key, UploadId=number)
        except ClientError as error:
            # Some users may write but not list; the bucket's own rules then remove old parts.
            if error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 500) >= 500:
                raise

    def check_writable(self) -> None:
        """Start an upload and abort it, which leaves nothing behind."""
        with _translated(str(self)):
            client = _client(1)
            target = {"Bucket": self.bucket, "Key": self._key(f"radt-doctor-{uuid.uuid4().hex}")}
            upload = client.create_multipart_upload(**target)
            client.abort_multipart_upload(**target, UploadId=upload["UploadId"])


def _transfer(part_bytes: int, *, threads: bool = True) -> Any:
    from boto3.s3.transfer import TransferConfig

    return TransferConfig(
        multipart_threshold=part_bytes,
        multipart_chunksize=part_bytes,
        max_concurrency=_DOWNLOADS_AT_A_TIME,
        use_threads=threads,
    )


def _owner() -> dict[str, str]:
    owner = os.environ.get("MLFLOW_S3_EXPECTED_BUCKET_OWNER")
    return {"ExpectedBucketOwner": owner} if owner else {}


def _extra(file: Path) -> dict[str, Any]:
    """Return the arguments of MLflow's own uploads: the content type, and the user's arguments."""
    kind, encoding = mimetypes.guess_type(file.name)
    given = {"ContentType": kind, "ContentEncoding": encoding}
    extra: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    with contextlib.suppress(ValueError):  # MLflow reports invalid JSON to the user
        extra |= json.loads(os.environ.get("MLFLOW_S3_UPLOAD_EXTRA_ARGS") or "{}")
    return extra


# -- client and errors ----------------------------------------------------------------------------


def _client(attempts: int) -> Any:
    names = (*_VARIABLES, *sorted(name for name in os.environ if name.startswith("AWS_")))
    variables = tuple((name, value) for name in names if (value := os.environ.get(name)))
    return _client_for(variables, attempts)


@cache
def _client_for(variables: tuple[tuple[str, str], ...], attempts: int) -> Any:
    """Return the client for these variables; creating one takes 0.2 s."""
    import boto3
    from botocore import UNSIGNED
    from botocore.config import Config
    from botocore.utils import conditionally_calculate_md5

    given = dict(variables)
    signature = given.get("MLFLOW_EXPERIMENTAL_S3_SIGNATURE_VERSION", "s3v4")
    options: dict[str, Any] = {
        "signature_version": UNSIGNED if signature.lower() == "unsigned" else signature,
        "s3": {"addressing_style": given.get("MLFLOW_BOTO_CLIENT_ADDRESSING_STYLE", "auto")},
        "connect_timeout": _CONNECT_TIMEOUT_S,
        "read_timeout": _READ_TIMEOUT_S,
        "tcp_keepalive": True,
    }
    if "AWS_REQUEST_CHECKSUM_CALCULATION" not in given:
        options["request_checksum_calculation"] = "when_required"
    if "AWS_RESPONSE_CHECKSUM_VALIDATION" not in given:
        options["response_checksum_validation"] = "when_required"
    if "AWS_MAX_ATTEMPTS" not in given:
        options["retries"] = {"mode": "standard", "total_max_attempts": attempts}
    insecure = given.get("MLFLOW_S3_IGNORE_TLS", "").lower() in ("true", "1")
    # A separate session: threads cannot share boto3's default one.
    client = boto3.session.Session().client(
        "s3",
        endpoint_url=given.get("MLFLOW_S3_ENDPOINT_URL"),
        verify=False if insecure else None,
        config=Config(**options),
    )
    for request in ("PutObject", "UploadPart"):
        client.meta.events.register(f"before-call.s3.{request}", conditionally_calculate_md5)
    return client


def _s3_errors() -> tuple[type[Exception], ...]:
    from boto3.exceptions import Boto3Error
    from botocore.exceptions import BotoCoreError, ClientError

    return Boto3Error, BotoCoreError, ClientError


@contextmanager
def _translated(where: str) -> Iterator[None]:
    """Turn boto3's exceptions into `S3Error`."""
    from botocore.exceptions import NoCredentialsError

    try:
        yield
    except NoCredentialsError as error:
        raise S3Error(
            where, "S3 needs keys: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        ) from error
    except _s3_errors() as error:
        # A request that never reached S3, or lost its connection, has an empty response or none.
        answer = (getattr(error, "response", None) or {}).get("Error", {})
        code = str(answer.get("Code", ""))
        if code in _MISSING:
            reason = "not found in S3"
        elif code:
            message = masked(str(answer.get("Message", "")))[:200]
            reason = _REASONS.get(code) or f"S3: {code} {message}".rstrip()
        else:
            text = str(error).strip() or type(error).__name__
            reason = f"S3: {masked(text).splitlines()[0]}"
        raise S3Error(where, reason, code) from error
