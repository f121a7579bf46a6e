"""From planted measurements to findings."""

from __future__ import annotations

import doctest
import math
from collections import Counter

import pytest
from scipy import stats

from radt.errors import UsageError
from radt.model import ListenerChoice
from radt.selftest import findings, pairs
from radt.selftest.measure import Options, chosen_listeners
from radt.selftest.pairs import Pair, Side, Timed, orders, paired_ratio
from radt.selftest.results import Finding, Verdict
from radt.selftest.sampling import Account, Sampled
from radt.selftest.starting import Starts
from radt.store.records import LedgerRecord


def by_key(found: list[Finding]) -> dict[str, Finding]:
    return {one.key: one for one in found}


# Pairs -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_order_is_balanced_and_drawn_anew_by_seed(seed: int) -> None:
    found = orders(40, seed)
    assert found == orders(40, seed)
    assert Counter(found) == {Side.WITH: 20, Side.WITHOUT: 20}
    # Neighbours begin with different sides, so that what drifts favours none.
    assert all(set(found[at : at + 2]) == set(Side) for at in range(0, 40, 2))


def test_example_of_orders_is_true() -> None:
    result = doctest.testmod(pairs)
    assert result.attempted > 0
    assert result.failed == 0


def test_order_depends_on_the_seed() -> None:
    assert len({tuple(orders(20, seed)) for seed in range(20)}) > 15
    assert orders(3, 1) == orders(4, 1)[:3]


def test_paired_ratio_is_the_t_test_on_logarithms() -> None:
    ratios = [1.01, 1.03, 0.99, 1.02, 1.05]
    logs = [math.log(ratio) for ratio in ratios]
    expected = stats.ttest_1samp(logs, 0).confidence_interval(0.95)
    found = paired_ratio(ratios)
    assert found.value == pytest.approx(stats.gmean(ratios))
    assert (found.low, found.high) == pytest.approx(
        (math.exp(expected.low), math.exp(expected.high))
    )
    # Swapping the sides inverts all of it: no side is preferred.
    other = paired_ratio([1 / ratio for ratio in ratios])
    assert (1 / other.value, 1 / other.high, 1 / other.low) == pytest.approx(
        (found.value, found.low, found.high)
    )


def test_single_pair_has_no_interval() -> None:
    assert paired_ratio([1.1]).low is None


def pair(slower: float, added_s: float = 0.5) -> Pair:
    without = Timed(body_s=2.0, whole_s=2.1, waited=0.0, tracker_s=0.0)
    with_radt = Timed(2.0 * slower, 2.0 * slower + 0.1 + added_s, 0.0, 0.3)
    return Pair(Side.WITH, without, with_radt)


def test_findings_of_pairs() -> None:
    found = by_key(
        findings.of_pairs([pair(1.004), pair(1.006), pair(1.005)], gpu=False, processes=2)
    )
    slowdown = found["slowdown.cpu"]
    assert slowdown.value == pytest.approx(1.005, abs=1e-4)
    assert slowdown.verdict is Verdict.HELD
    assert "3 pairs on 2 CPUs" in slowdown.detail
    assert found["added.cpu"].value == pytest.approx(0.5)
    assert found["tracker.cpu"].value == pytest.approx(0.3)


def test_slowdown_is_missed_only_for_certain() -> None:
    def verdict(*slower: float) -> Verdict:
        found = findings.of_pairs([pair(one) for one in slower], gpu=True, processes=1)
        return by_key(found)["slowdown.gpu"].verdict

    assert verdict(1.10, 1.11, 1.12) is Verdict.MISSED
    assert verdict(0.90, 1.11, 1.12) is Verdict.UNCLEAR
    assert verdict(1.10) is Verdict.UNCLEAR


# Sampling ----------------------------------------------------------------------------------------


def ledger(run: str, received: int, missed: int, reason: str = "") -> LedgerRecord:
    return LedgerRecord(
        *(run, "top", 1.0, received + missed, received, missed),
        sampling_ns=received * 2_000_000,
        sampling_max_ns=9_000_000,
        late_ns=received * 1_000_000,
        late_max_ns=4_000_000,
        reason=reason,
    )


def sampled(*accounts: Account, warnings: tuple[str, ...] = ()) -> Sampled:
    return Sampled(0.015, 80_000_000, 200.0, accounts, warnings)


def test_account_over_runs() -> None:
    found = Account.of([ledger("a", 10, 0), ledger("b", 6, 4, "it hung")], values=160)
    assert (found.expected, found.received, found.missed) == (20, 16, 4)
    assert (found.took_s, found.took_max_s) == pytest.approx((0.002, 0.009))
    assert (found.late_s, found.late_max_s) == pytest.approx((0.001, 0.004))
    assert found.reason == "it hung"


def test_findings_of_sampling() -> None:
    account = Account.of([ledger("a", 99, 0), ledger("b", 99, 2)], values=500)
    found = by_key(findings.of_sampling(sampled(account), 1.0, runs=2))
    assert found["sampling_1hz.cpu"].verdict is Verdict.HELD
    assert found["sampling_1hz.memory"].verdict is Verdict.HELD
    assert found["sampling_1hz.missed"].value == pytest.approx(2 / 200)
    assert found["sampling_1hz.missed"].verdict is Verdict.HELD
    assert found["sampling_1hz.late"].value == pytest.approx(0.001)
    more = Account.of([ledger("a", 90, 10)], values=500)
    found = by_key(findings.of_sampling(sampled(more), 10.0, runs=1))
    assert found["sampling_10hz.missed"].verdict is Verdict.MISSED


def test_findings_of_listeners() -> None:
    works = Account.of([ledger("a", 5, 0)], values=50)
    silent = Account(**{**_fields(works), "listener": "smi", "values": 0})
    gone = Account(**{**_fields(works), "listener": "gpm", "received": 0, "reason": "no driver"})
    warnings = ("listener rapl: may not be read",)
    found = by_key(
        findings.of_listeners(
            sampled(works, silent, gone, warnings=warnings), ["top", "smi", "gpm", "rapl", "net"]
        )
    )
    assert found["listener.top"].verdict is Verdict.HELD
    assert found["listener.smi"].failure == "it reads, and has no values"
    assert found["listener.gpm"].failure == "no driver"
    assert found["listener.rapl"].failure == "listener rapl: may not be read"
    assert found["listener.net"].failure == "it read nothing"


def _fields(account: Account) -> dict[str, object]:
    return {name: getattr(account, name) for name in Account.__slots__}


def test_skew_between_lowest_and_highest() -> None:
    found = by_key(findings.of_starts(Starts((0.011, 0.019, 0.022), (0.3, 0.4))))
    assert found["start_skew"].value == 0.019
    assert found["start_skew"].verdict is Verdict.UNCLEAR
    assert found["between"].verdict is Verdict.HELD


# What is asked for -------------------------------------------------------------------------------


def test_listeners_are_chosen_as_in_an_experiment_file() -> None:
    assert chosen_listeners("none") == ()
    assert chosen_listeners("top:cores@2s + free") == (
        ListenerChoice("top", 2.0, ("cores",)),
        ListenerChoice("free"),
    )
    usual = chosen_listeners("default")
    assert "top" in [one.name for one in usual]
    with_own = chosen_listeners("default+top@100ms")
    assert {one.name for one in with_own} == {one.name for one in usual}
    assert ListenerChoice("top", 0.1) in with_own


@pytest.mark.parametrize("text", ["topp", "nsys", "default+nothing"])
def test_what_is_no_listener_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"listener|profiler"):
        chosen_listeners(text)


def test_rates_of_sampling_replace_intervals() -> None:
    options = Options(1, 1.0, chosen_listeners("top:cores@2s+free"), seed=1)
    assert options.listeners_text == "top:cores@2s+free"
    assert options.at(10.0) == "top:cores@0.1s+free@0.1s"
