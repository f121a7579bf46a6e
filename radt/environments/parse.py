"""Reads an Environment cell."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from radt.environments.spec import EnvironmentSpec


def parse_environment(
    text: str,
    folder: Path,
    named: Mapping[str, str],
    data: tuple[Path, ...] = (),
) -> EnvironmentSpec:
    """What an Environment cell asks for.

    Args:
        text: ``local`` or nothing; ``uv``, ``uv:FILE``; ``conda``, ``conda:FILE``;
            ``docker:IMAGE``; or one of ``named``.
        folder: Where files are looked up: the program's, absolute.
        named: Environments of ``radt.toml`` by name; their values are texts of the same kinds.
        data: Folders that a container must see, absolute.

    Raises:
        UsageError: It cannot be understood, or a file that it needs is not there.
    """
    raise NotImplementedError
