"""How texts are read as amounts."""

from __future__ import annotations

import pytest

from radt.errors import UsageError
from radt.training.memory import bytes_of
from radt.units import parse_memory_bytes


@pytest.mark.parametrize(
    ("text", "for_schedulers", "for_training"),
    [
        ("512B", 512, 512),
        ("1 kb", 1024, 1000),
        ("64G", 64 * 1024**3, 64 * 1000**3),
        ("20GB", 20 * 1024**3, 20 * 1000**3),
        ("20GiB", 20 * 1024**3, 20 * 1024**3),
        (" 1.5 mib ", 1536 * 1024, 1536 * 1024),
        ("1e3MB", 1000 * 1024**2, 1000 * 1000**2),
    ],
)
def test_amounts_of_memory(text: str, for_schedulers: int, for_training: int) -> None:
    assert parse_memory_bytes(text) == for_schedulers
    assert bytes_of(text) == for_training
    assert bytes_of(512) == 512


@pytest.mark.parametrize("text", ["", "64", "0B", "-1GB", "GB", "6 apples", "1iB", "1e3", "1GiBs"])
def test_other_texts_are_no_amounts_of_memory(text: str) -> None:
    with pytest.raises(UsageError, match=r"is not an amount of memory.*64GB, 512MiB.*1000000B"):
        parse_memory_bytes(text)
