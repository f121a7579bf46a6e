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

import base64
import contextlib
import hashlib
import json
import mimetypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from radt.errors import ArchiveError
from radt.masking import masked

#: Size of a part of a large file, and thus the maximum of a file in memory at a time.
PART_BYTES = 16 * 2**20
#: Maximum number of parts in Swift; AWS allows 10,000.
MAX_PARTS = 900
_DOWNLOADS_AT_A_TIME = 4
_CONNECT_TIMEOUT_S = 10
_READ_TIMEOUT_S = 60
_READ_ATTEMPTS = 5
#: The uploader retries later, and serves other runs meanwhile.
_WRITE_ATTEMPTS = 3
_MISSING = frozenset({"404", "NoSuchKey", "NotFound"})
#: Errors that no retry helps against.
_FINAL = frozenset({"EntityTooLarge", "KeyTooLongError", "InvalidURI"})
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

    @property
    def missing(self) -> bool:
        """Return whether the object does not exist."""
        return self.code in _MISSING

    @property
    def final(self) -> bool:
        """Return whether S3 will always refuse the request."""
        return self.code in _FINAL


@dataclass(frozen=True, slots=True)
class S3Folder:
    """A prefix of keys in a bucket. Methods raise `S3Error`; ``OSError`` for a local file."""

    bucket: str
    prefix: str

    @classmethod
    def of(cls, uri: str) -> S3Folder:
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

    def key(self, path: str) -> str:
        return f"{self.prefix}/{path}".lstrip("/")

    # -- reading ----------------------------------------------------------------------------------

    def fetch(self, path: str, target: Path) -> None:
        """Copy an object to a file."""
        from boto3.s3.transfer import TransferConfig

        transfer = TransferConfig(
            multipart_threshold=PART_BYTES,
            multipart_chunksize=PART_BYTES,
            max_concurrency=_DOWNLOADS_AT_A_TIME,
        )
        with _translated(f"{self}/{path}"):
            client = _client(_READ_ATTEMPTS)
            client.download_file(self.bucket, self.key(path), str(target), Config=transfer)

    def paths(self) -> Iterator[str]:
        """Yield all paths below the prefix, relative to it."""
        start = f"{self.prefix}/" if self.prefix else ""
        with _translated(str(self)):
            pages = _client(_READ_ATTEMPTS).get_paginator("list_objects_v2")
            for page in pages.paginate(Bucket=self.bucket, Prefix=start):
                for entry in page.get("Contents", ()):
                    yield str(entry["Key"]).removeprefix(start)

    # -- writing ----------------------------------------------------------------------------------

    def put(self, path: str, file: Path) -> None:
        """Upload a file atomically to ``path``, replacing an existing one."""
        target = {"Bucket": self.bucket, "Key": self.key(path)}
        if owner := os.environ.get("MLFLOW_S3_EXPECTED_BUCKET_OWNER"):
            target["ExpectedBucketOwner"] = owner
        with _translated(f"{self}/{path}"), file.open("rb") as content:
            size = os.fstat(content.fileno()).st_size
            client = _client(_WRITE_ATTEMPTS)
            if size <= PART_BYTES:
                body = content.read()
                client.put_object(**target, Body=body, ContentMD5=_md5(body), **_extra(file))
            else:
                _put_parts(client, target, content, size, _extra(file))


def _put_parts(
    client: Any, target: dict[str, str], content: IO[bytes], size: int, extra: dict[str, Any]
) -> None:
    _abort_earlier(client, target)
    upload_id = client.create_multipart_upload(**target, **extra)["UploadId"]
    upload = target | {"UploadId": upload_id}
    try:
        parts: list[dict[str, Any]] = []
        part_bytes = max(PART_BYTES, -(-size // MAX_PARTS))
        while body := content.read(part_bytes):
            number = len(parts) + 1
            answer = client.upload_part(
                **upload, PartNumber=number, Body=body, ContentMD5=_md5(body)
            )
            parts.append({"PartNumber": number, "ETag": answer["ETag"]})
        client.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts})
    except BaseException:
        # Its parts use space; if this fails, too, the next attempt aborts it.
        with contextlib.suppress(*_s3_errors()):
            client.abort_multipart_upload(**upload)
        raise
    stored = client.head_object(**target)["ContentLength"]
    if stored != content.tell():
        where = f"s3://{target['Bucket']}/{target['Key']}"
        raise S3Error(where, f"S3 has {stored} bytes of {target['Key']}, not {content.tell()}")


def _abort_earlier(client: Any, target: dict[str, str]) -> None:
    """Abort unfinished uploads of earlier, killed processes at the same key."""
    from botocore.exceptions import ClientError

    bucket = {name: value for name, value in target.items() if name != "Key"}
    try:
        answer = client.list_multipart_uploads(**bucket, Prefix=target["Key"])
        for upload in answer.get("Uploads", ()):
            if upload["Key"] == target["Key"]:
                client.abort_multipart_upload(**target, UploadId=upload["UploadId"])
    except ClientError as error:
        # Some users may write but not list; the bucket's own rules then remove old parts.
        if error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 500) >= 500:
            raise


def _extra(file: Path) -> dict[str, Any]:
    """Return the arguments of MLflow's own uploads: the content type, and the user's arguments."""
    kind, encoding = mimetypes.guess_type(file.name)
    extra: dict[str, Any] = {}
    if kind is not None:
        extra["ContentType"] = kind
    if encoding is not None:
        extra["ContentEncoding"] = encoding
    with contextlib.suppress(ValueError):  # MLflow reports it to the user
        extra |= json.loads(os.environ.get("MLFLOW_S3_UPLOAD_EXTRA_ARGS") or "{}")
    return extra


def _md5(body: bytes) -> str:
    return base64.b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode("ascii")


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
    return boto3.session.Session().client(
        "s3",
        endpoint_url=given.get("MLFLOW_S3_ENDPOINT_URL"),
        verify=False if insecure else None,
        config=Config(**options),
    )


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
