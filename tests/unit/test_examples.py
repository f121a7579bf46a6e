"""The examples in docstrings are true."""

from __future__ import annotations

import doctest
import importlib

import pytest


@pytest.mark.parametrize(
    "module",
    [
        *("radt.units", "radt.masking", "radt.params", "radt.units", "radt.experiment.plan"),
        *(
            "radt.experiment.devices",
            "radt.runner.live",
            "radt.analysis.estimates",
            "radt.errors",
            "radt.paths",
        ),
    ],
)
def test_examples_in_docstrings(module: str) -> None:
    result = doctest.testmod(importlib.import_module(module))
    assert result.attempted > 0
    assert result.failed == 0
