"""Fixtures of these tests."""

from __future__ import annotations

import pytest

from radt.loaders.shared import session
from tests.support.shared_loading import start_forked_server


@pytest.fixture
def forked_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers are up at once; a few tests start one as users do."""
    monkeypatch.setattr(session, "start_server", start_forked_server)
