"""Names of downloaded files: what is in them, in characters that every file system takes."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from urllib.parse import quote

_UNSAFE = re.compile(r"[^\w.+-]+")
_MAX_LENGTH = 80


def file_name(words: Iterable[str], suffix: str) -> str:
    """``radt-quickstart-loss.csv``: words joined, what may not be in a name left out."""
    cleaned = [_UNSAFE.sub("-", unicodedata.normalize("NFC", word)).strip("-._") for word in words]
    stem = "-".join(word for word in ("radt", *cleaned) if word)[:_MAX_LENGTH].rstrip("-._")
    return f"{stem}.{suffix}"


def content_disposition(name: str) -> str:
    """The header that makes a browser save a file under a name (RFC 6266)."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode("ascii")
    plain = _UNSAFE.sub("-", plain)
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}"
