"""Choose how to show a file, by its suffix.

Only these media types are ever sent for display; none of them runs scripts (`radt.frontend.files`).
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import PurePosixPath


class FileKind(StrEnum):
    """How the page shows a file."""

    IMAGE = "image"
    AUDIO = "audio"
    VIDEO = "video"
    TABLE = "table"
    JSON = "json"
    MARKDOWN = "markdown"
    FIGURE = "figure"  # if it is a plotly figure, else text
    TEXT = "text"  # if it is text


#: Kinds that browsers display natively, with their media types.
MEDIA_TYPES = {
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".gif": "image/gif",
    ".webp": "image/webp",
    ".svg": "image/svg+xml",
    ".mp3": "audio/mpeg",
    ".wav": "audio/wav",
    ".ogg": "audio/ogg",
    ".flac": "audio/flac",
    ".m4a": "audio/mp4",
    ".mp4": "video/mp4",
    ".webm": "video/webm",
}
_OTHERS = {
    ".csv": FileKind.TABLE,
    ".tsv": FileKind.TABLE,
    ".parquet": FileKind.TABLE,
    ".json": FileKind.JSON,
    ".md": FileKind.MARKDOWN,
    ".html": FileKind.FIGURE,
}


def suffix_of(path: str) -> str:
    """Return the suffix in lower case: ``.png``."""
    return PurePosixPath(path).suffix.lower()


def kind_of(path: str) -> FileKind:
    """Return the way to show a file."""
    suffix = suffix_of(path)
    if suffix in MEDIA_TYPES:
        return FileKind(MEDIA_TYPES[suffix].partition("/")[0])
    return _OTHERS.get(suffix, FileKind.TEXT)
