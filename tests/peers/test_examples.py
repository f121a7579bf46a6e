"""Scripts of other trackers record with radt what they record without it."""

from __future__ import annotations

from fnmatch import fnmatch
from pathlib import Path

import pytest

from tests.peers.compare import DIFFERENCES, HERE, differing, run_both, scripts_in

EXAMPLES = HERE / "examples"


@pytest.mark.quick_variants(1)
@pytest.mark.parametrize("script", list(scripts_in(EXAMPLES)), ids=lambda path: path.stem)
def test_with_and_without_radt(script: Path, tmp_path: Path) -> None:
    without, with_radt = run_both(script, tmp_path)
    assert without.runs, without.output
    found = set(differing(without, with_radt))
    known = {each.aspect for each in DIFFERENCES if fnmatch(f"/{script.name}", each.script)}
    assert found <= known and bool(found) == bool(known), with_radt.output
