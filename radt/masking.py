"""Keeps passwords out of what is shown, logged, or written where others may read it."""

from __future__ import annotations

import re

_CREDENTIALS = re.compile(r"://\S*@")


def masked(text: str) -> str:
    """The text with user and password of each URI in it replaced; rather too much than too little.

    >>> masked("radt a.csv --tracking-uri https://me:p@ss/word@mlflow.org/x"), masked("sqlite:///a")
    ('radt a.csv --tracking-uri https://***@mlflow.org/x', 'sqlite:///a')
    """
    return _CREDENTIALS.sub("://***@", text)
