"""Files of runs on their way into artifact stores: whole, or not there.

Where a run's artifact folder is an ``s3://`` address, files go there directly, by ways that every
S3 server understands: Content-MD5 on each request, which the server compares, parts of at least
16 MiB for large files. The CRC trailers that boto3 sends by default end up inside the files on
SeaweedFS before 3.85 (seaweedfs#6548) and are refused by others. A folder of this machine gets a
copy under another name that is renamed when it is on the disk.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import mimetypes
import os
import shutil
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

import boto3
import botocore.exceptions
from botocore import UNSIGNED
from botocore.config import Config

from radt.masking import masked
from radt.tracking.trouble import DeliveryError, Trouble

#: Longest part, and so the most of a file that is in memory at a time, but for huge ones.
PART_BYTES = 16 * 2**20
#: Swift takes 1000 parts, AWS 10,000.
MAX_PARTS = 900
_CONNECT_TIMEOUT_S = 10
_READ_TIMEOUT_S = 60
#: Of one request; what fails for longer is tried again with the run's next turn.
_ATTEMPTS = 3
#: Refusals that no repetition mends.
_FINAL = frozenset({"EntityTooLarge", "KeyTooLongError", "InvalidURI"})
_WORDS = {
    "AccessDenied": "S3 refuses the credentials for this bucket (AccessDenied)",
    "InvalidAccessKeyId": "S3 does not know the access key (AWS_ACCESS_KEY_ID)",
    "NoSuchBucket": "S3 has no such bucket",
    "SignatureDoesNotMatch": "S3 refuses the secret key (AWS_SECRET_ACCESS_KEY)",
}


def is_s3(artifact_uri: str) -> bool:
    """Whether a run's artifact folder is in S3.

    >>> is_s3("s3://bucket/1/run/artifacts"), is_s3("mlflow-artifacts:/1/run/artifacts")
    (True, False)
    """
    return artifact_uri.startswith("s3://")


class S3Uploads:
    """Writes objects as the environment's ``AWS_*`` and ``MLFLOW_S3_*`` say. Thread-safe.

    Methods raise `DeliveryError`; ``OSError`` if the file cannot be read.
    """

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._environ = environ
        self._lock = threading.Lock()
        self._made: Any = None

    def put(self, artifact_uri: str, path: str, file: Path) -> None:
        """Bring a file to ``path`` below a run's artifact folder, over what may be there.

        Args:
            artifact_uri: ``s3://BUCKET/PREFIX``.
            path: With ``/``.
            file: Read once more if it fails in the middle.
        """
        address = urlsplit(artifact_uri, allow_fragments=False)
        key = "/".join(part.strip("/") for part in (address.path, path) if part.strip("/"))
        with _s3_errors(), file.open("rb") as content:
            target = {"Bucket": address.netloc, "Key": key} | self._owner()
            size = os.fstat(content.fileno()).st_size
            if size <= PART_BYTES:
                self._put_small(target, content.read(), self._extra(file))
            else:
                self._put_parts(target, content, size, self._extra(file))

    def _put_small(self, target: dict[str, str], body: bytes, extra: dict[str, Any]) -> None:
        self._client.put_object(**target, Body=body, ContentMD5=_md5(body), **extra)

    def _put_parts(
        self, target: dict[str, str], content: IO[bytes], size: int, extra: dict[str, Any]
    ) -> None:
        client = self._client
        self._abort_older(target)
        upload = target | {
            "UploadId": client.create_multipart_upload(**target, **extra)["UploadId"]
        }
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
            # Its parts cost room; if this fails, too, the next attempt finds it.
            with contextlib.suppress(*_S3_ERRORS):
                client.abort_multipart_upload(**upload)
            raise
        found = client.head_object(**target)["ContentLength"]
        if found != content.tell():
            raise DeliveryError(
                Trouble.BUSY, f"S3 has {found} bytes of {target['Key']}, not {content.tell()}"
            )

    def _abort_older(self, target: dict[str, str]) -> None:
        """Give up what an earlier deliverer, killed in the middle, began at the same key."""
        owner = {name: value for name, value in target.items() if name != "Key"}
        try:
            answer = self._client.list_multipart_uploads(**owner, Prefix=target["Key"])
            for upload in answer.get("Uploads", ()):
                if upload["Key"] == target["Key"]:
                    self._client.abort_multipart_upload(**target, UploadId=upload["UploadId"])
        except botocore.exceptions.ClientError as error:
            # Some may write, and not list; parts left behind are for the bucket's own rules then.
            if error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 500) >= 500:
                raise

    @property
    def _client(self) -> Any:
        with self._lock:
            if self._made is None:
                self._made = self._make_client()
            return self._made

    def _make_client(self) -> Any:
        environ = self._environ
        signature = environ.get("MLFLOW_EXPERIMENTAL_S3_SIGNATURE_VERSION", "s3v4")
        style = environ.get("MLFLOW_BOTO_CLIENT_ADDRESSING_STYLE", "auto")
        options: dict[str, Any] = {
            "signature_version": UNSIGNED if signature.lower() == "unsigned" else signature,
            "s3": {"addressing_style": style},
            "connect_timeout": _CONNECT_TIMEOUT_S,
            "read_timeout": _READ_TIMEOUT_S,
            "tcp_keepalive": True,
        }
        if "AWS_REQUEST_CHECKSUM_CALCULATION" not in environ:
            options["request_checksum_calculation"] = "when_required"
        if "AWS_RESPONSE_CHECKSUM_VALIDATION" not in environ:
            options["response_checksum_validation"] = "when_required"
        if "AWS_MAX_ATTEMPTS" not in environ:
            options["retries"] = {"mode": "standard", "total_max_attempts": _ATTEMPTS}
        insecure = environ.get("MLFLOW_S3_IGNORE_TLS", "").lower() in ("true", "1")
        # A session of its own: boto3's default one is not safe to use from several threads.
        return boto3.session.Session().client(
            "s3",
            endpoint_url=environ.get("MLFLOW_S3_ENDPOINT_URL") or None,
            verify=False if insecure else None,
            config=Config(**options),
        )

    def _extra(self, file: Path) -> dict[str, Any]:
        """As MLflow's own uploads have: the kind of content, and what the user asks for."""
        kind, encoding = mimetypes.guess_type(file.name)
        found: dict[str, Any] = {}
        if kind is not None:
            found["ContentType"] = kind
        if encoding is not None:
            found["ContentEncoding"] = encoding
        with contextlib.suppress(ValueError):  # MLflow complains to the user about it
            found |= json.loads(self._environ.get("MLFLOW_S3_UPLOAD_EXTRA_ARGS") or "{}")
        return found

    def _owner(self) -> dict[str, str]:
        owner = self._environ.get("MLFLOW_S3_EXPECTED_BUCKET_OWNER")
        return {"ExpectedBucketOwner": owner} if owner else {}


_S3_ERRORS = (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError)


def _md5(body: bytes) -> str:
    return base64.b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode("ascii")


@contextmanager
def _s3_errors() -> Iterator[None]:
    """An S3 server in trouble concerns files only: MLflow itself may be well."""
    try:
        yield
    except botocore.exceptions.ClientError as error:
        answer = error.response.get("Error", {})
        code = str(answer.get("Code", ""))
        trouble = Trouble.REFUSED if code in _FINAL else Trouble.BUSY
        words = _WORDS.get(code) or f"S3: {code} {masked(str(answer.get('Message', '')))[:200]}"
        raise DeliveryError(trouble, words.strip(), too_large=code == "EntityTooLarge") from error
    except botocore.exceptions.NoCredentialsError as error:
        raise DeliveryError(
            Trouble.BUSY, "S3 wants keys: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        ) from error
    except botocore.exceptions.BotoCoreError as error:
        raise DeliveryError(Trouble.BUSY, f"S3: {masked(str(error)).splitlines()[0]}") from error


def copy_whole(file: Path, target: Path) -> None:
    """Copy or link a file, over what may be there; others see all of it or none.

    Raises:
        OSError: It cannot be read or written.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    # The same name each time: what a killed process left is taken over by the next one.
    mark = hashlib.sha256(target.name.encode("utf-8", "surrogateescape")).hexdigest()[:16]
    partial = target.with_name(f".radt-{mark}.part")
    try:
        partial.unlink(missing_ok=True)
        if not _linked(file, partial):
            shutil.copyfile(file, partial)
            shutil.copystat(file, partial)
        with partial.open("rb") as copied:
            os.fsync(copied.fileno())
        partial.replace(target)
    except OSError:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise


def _linked(file: Path, other: Path) -> bool:
    """Give a file a second name; False where that cannot be: it is on another file system.

    What is delivered leaves the spool, or stays there under the first name at no cost. A link that
    a user has put there leads to a file of theirs, which they may go on changing.
    """
    if file.is_symlink():
        return False
    try:
        os.link(file, other)
    except OSError:
        return False
    return True


def shares_folder(folder: Path) -> bool:
    """Whether this machine has the folder of an experiment's artifacts that a server names.

    A server that was told of a plain folder means its own. Writing to a folder of the same name
    here would lose the files where nobody looks, unless it is shared (NFS): then what the
    experiments are in is here, too.

    Args:
        folder: Of a run: ``ROOT/EXPERIMENT/RUN/artifacts``.
    """
    return any(parent.is_dir() for parent in folder.parents[:3] if parent != Path(parent.anchor))
