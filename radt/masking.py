"""Keeps passwords out of what is shown, logged, or written where others may read it."""

from __future__ import annotations

import re

_CREDENTIALS = re.compile(r"://\S*@")
#: Of libpq, which takes them there, too; and of S3's presigned addresses.
_IN_QUERY = re.compile(r"(?i)([?&](?:password|sslpassword|user|x-amz-[a-z-]*)=)[^&\s]+")


def masked(text: str) -> str:
    """The text with user and password of each URI in it replaced; rather too much than too little.

    >>> masked("radt a.csv --tracking-uri https://me:p@ss/word@mlflow.org/x"), masked("sqlite:///a")
    ('radt a.csv --tracking-uri https://***@mlflow.org/x', 'sqlite:///a')
    """
    return _IN_QUERY.sub(r"\1***", _CREDENTIALS.sub("://***@", text))
