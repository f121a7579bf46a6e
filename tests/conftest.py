"""Fixtures that all tests share: every test has a runtime folder and a data folder of its own."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

# A shell that starts the tests in the background has them ignore Ctrl-C, which every process below
# would inherit, also those whose Ctrl-C is what is tested.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes says something about the machine only.
hypothesis.settings.register_profile("radt", deadline=None)
hypothesis.settings.load_profile("radt")


@pytest.fixture(autouse=True)
def private_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Keep tests off the user's own collector and data.

    The runtime folder is not below ``tmp_path``: the path of a Unix socket may have only 107
    characters.
    """
    with tempfile.TemporaryDirectory(prefix="radt-", ignore_cleanup_errors=True) as runtime:
        monkeypatch.setenv("RADT_RUNTIME_DIR", runtime)
        monkeypatch.setenv("RADT_HOME", str(tmp_path / "radt-data"))
        for name in ("RADT_RUN_ID", "RADT_RUN_DIR", "RADT_MODE", "MLFLOW_TRACKING_URI"):
            monkeypatch.delenv(name, raising=False)
        yield
