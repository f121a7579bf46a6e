"""Rounds of random faults: no value is lost, doubled or wrong, and every run ends."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.chaos.campaign import Campaign, table
from tests.chaos.truth import MAX_BURST, Copy, Log, compare
from tests.support.postgres import Postgres

#: Seven rounds have all faults; see `make chaos` for more.
ROUNDS = [3, pytest.param(7, marks=pytest.mark.long)]
#: What is drawn; when it strikes is chance still. Rounds 8 to 10 have no other faults than these.
#: `make chaos` draws from another one each time.
SEED = int(os.environ.get("SEED", "15"))
#: Rounds at a time: they wait a lot.
JOBS = 2


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("count", ROUNDS)
def test_what_scripts_logged_is_in_all_stores_whatever_happens(
    postgres: Postgres, tmp_path: Path, count: int
) -> None:
    rounds = list(Campaign(tmp_path, postgres, SEED).rounds(count, jobs=JOBS))
    print(f"seed {SEED}\n{table(rounds)}")
    assert not any(one.wrong for one in rounds), f"seed {SEED}\n{table(rounds)}"


TRUTH = Log("r" * 32, seed=3, values=1000)


def recorded(*steps: int) -> Copy:
    return Copy("FINISHED", [(TRUTH.name(step), step, TRUTH.value(step)) for step in steps])


def test_what_was_not_written_down_yet_may_be_there() -> None:
    assert compare(TRUTH, recorded(*range(1000))) == []
    assert compare(TRUTH, recorded(*range(1000 + MAX_BURST))) == []


def test_what_is_missing_double_wrong_or_unheard_of_is_found() -> None:
    wrong = recorded(*range(1000))
    wrong.points[5] = ("m0", 5, 0.5)
    assert "instead of" in compare(TRUTH, wrong)[0]
    assert "step 7 twice" in compare(TRUTH, recorded(*range(1000), 7))[0]
    assert "never logged" in compare(TRUTH, recorded(*range(1000), 5000))[0]
    missing = recorded(*range(990))
    assert compare(TRUTH, missing) == ["10 of 1000 values missing (steps 990 to 999)"]
    assert compare(TRUTH, missing, lost=10) == []
