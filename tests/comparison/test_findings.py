"""What is compared with what, what follows, and what else differs, of stores of known truth."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pytest

from radt.analysis.estimates import Method
from radt.analysis.findings import (
    Comparison,
    Finding,
    Verdict,
    compare,
    ran_in_turns,
)
from radt.analysis.operands import OperandFinder, Start
from radt.analysis.quantities import Direction, Quantity
from radt.analysis.window_spec import DEFAULT_WINDOW, WindowSpec
from radt.errors import UsageError
from radt.model import RunStatus
from radt.render.comparison import false_positives_text, sentence, sentences, summary_text, warnings
from radt.store.locate import Places
from tests.comparison.planted import COMMIT_A, COMMIT_B, rounds, store_of
from tests.frontend.report_support import Planted, Study

TIME, RATE = Quantity.TIME_PER_EPOCH, Quantity.SAMPLES_PER_S
MAKESPAN, ENERGY = Quantity.MAKESPAN, Quantity.ENERGY_PER_EPOCH
A_DAY_NS = 86_400 * 10**9
CLOSE = (0.996, 1.004, 1.0, 1.002, 0.998)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return store_of(tmp_path)


def compared(
    store: Path,
    a: str,
    b: str,
    *quantities: Quantity,
    confidence: float = 0.95,
    window: WindowSpec = DEFAULT_WINDOW,
) -> Comparison:
    with OperandFinder(Places.of(store.parent), window, store.parent) as finder:
        sides = finder.find(a), finder.find(b)
        return compare(*sides, quantities or (TIME,), confidence=confidence, window=window)


def only(comparison: Comparison) -> Finding:
    (finding,) = comparison.findings
    return finding


def after(store: Path, name: str = "after") -> Study:
    """An experiment of the next day."""
    study = Study(store, name)
    study.now_ns += A_DAY_NS
    return study


def scaled(values: Sequence[float], factor: float) -> list[float]:
    return [factor * value for value in values]


def test_workloads_that_ran_in_turns_are_paired(store: Path) -> None:
    """The machine gets slower from round to round by far more than what differs."""
    drift = (1.0, 1.3, 1.7, 2.2)
    rounds(
        Study(store),
        {
            "solo": scaled(drift, 2.0),
            "three": [2.6 * x * y for x, y in zip(drift, CLOSE[:4], strict=True)],
        },
        rows={"three": 3},
    )
    finding = only(compared(store, "study/solo", "study/three"))
    assert (finding.effect.method, finding.effect.counts) == (Method.PAIRED, (4, 4))
    assert finding.verdict is Verdict.WORSE
    assert finding.effect.value == pytest.approx(1.3, rel=0.003)
    assert finding.effect.interval is not None
    assert finding.effect.interval.high / finding.effect.interval.low < 1.02
    assert sentence(finding, 0.95).startswith(
        "three vs solo: B is 1.30× slower (time per epoch 3.10 s → 4.03 s, 95 % CI 1.29–1.31×,"
        " n = 4, paired)"
    )


def test_rows_of_a_workload_are_one_observation(store: Path) -> None:
    """Seven runs at once are no seven repeats: with as many values it would seem to be known."""
    study = Study(store)
    for label, factor in (("a", 1.0), ("b", 1.02)):
        for number, wobble in enumerate((1.0, 1.1)):
            study.workload(
                label,
                [Planted(one, 2.0 * factor * wobble) for one in "abcdefg"],
                tags={"radt.series": label, "radt.repeat": f"{number + 1}/2"},
            )
    finding = only(compared(store, "study/a", "study/b"))
    assert finding.effect.counts == (2, 2)
    assert finding.verdict is Verdict.INCONCLUSIVE


def test_other_days_are_not_paired(store: Path) -> None:
    rounds(Study(store, "before"), {"one": scaled(CLOSE, 2.0)})
    rounds(after(store), {"one": scaled(CLOSE, 1.5)})
    finding = only(compared(store, "before", "after"))
    assert (finding.effect.method, finding.verdict) == (Method.WELCH, Verdict.BETTER)
    assert sentence(finding, 0.95) == (
        "one: B is 1.33× faster (time per epoch 2.00 s → 1.50 s, 95 % CI 1.33–1.34×, "
        "n = 5, unpaired)"
    )


def test_a_repeat_that_failed_leaves_no_pairs(store: Path) -> None:
    study = Study(store)
    for number, wobble in enumerate(CLOSE[:4]):
        for label, factor in (("a", 1.0), ("b", 0.8)):
            is_bad = (number, label) == (1, "b")
            study.workload(
                label,
                [
                    Planted("a", 2.0 * factor * wobble),
                    Planted(
                        "b",
                        2.0 * factor * wobble,
                        status=RunStatus.FAILED if is_bad else RunStatus.FINISHED,
                    ),
                ],
                tags={"radt.series": label, "radt.repeat": f"{number + 1}/4"},
            )
    finding = only(compared(store, "study/a", "study/b"))
    assert (finding.effect.method, finding.effect.counts) == (Method.WELCH, (4, 3))
    assert finding.effect.value == pytest.approx(0.8, rel=0.01)
    assert "n = 4 and 3, unpaired" in sentence(finding, 0.95)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ([(1, 10), (2, 30)], [(1, 20), (2, 40)], True),
        ([(1, 10), (2, 30)], [(1, 20), (2, 15)], False),
        ([(1, 10), (2, 20)], [(1, 30), (2, 40)], False),
        ([(1, 10), (2, 30)], [(1, 20), (3, 40)], False),
        ([(1, 10), (2, 30)], [(1, 20)], False),
        ([(1, 10)], [(1, 20)], False),
        ([(None, 10), (None, 30)], [(None, 20), (None, 40)], False),
        ([(1, 10), (1, 30)], [(1, 20), (1, 40)], False),
    ],
)
def test_rounds(
    a: list[tuple[int | None, int]], b: list[tuple[int | None, int]], expected: bool
) -> None:
    assert ran_in_turns([Start(*one) for one in a], [Start(*one) for one in b]) is expected


@pytest.mark.parametrize(
    ("a", "b", "verdict", "said"),
    [
        (CLOSE, scaled(CLOSE, 1.01), Verdict.WORSE, "B is 1.01× slower"),
        (CLOSE, (1.0, 1.01, 1.0, 0.99, 1.003), Verdict.ALIKE, "alike within 5 % (time per epoch"),
        (CLOSE, CLOSE, Verdict.EQUAL, "one: equal (time per epoch 1.00 s → 1.00 s, n = 5"),
        (
            (1.0, 1.2),
            (1.1, 1.3),
            Verdict.INCONCLUSIVE,
            "inconclusive (time per epoch 1.10 s → 1.20 s, 95 % CI 0.64–1.87×",
        ),
        (
            (1.0,),
            (1.3,),
            Verdict.INCONCLUSIVE,
            "B is 1.30× slower (time per epoch 1.00 s → 1.30 s); one repeat, no interval",
        ),
    ],
)
def test_what_can_be_said(
    store: Path, a: Sequence[float], b: Sequence[float], verdict: Verdict, said: str
) -> None:
    rounds(Study(store, "before"), {"one": a})
    rounds(Study(store, "after"), {"one": b})  # at the same times, as far as clocks tell
    finding = only(compared(store, "before", "after"))
    if verdict is Verdict.INCONCLUSIVE and len(a) > 1:  # a pair would tell
        rounds(after(store, "later"), {"one": b})
        finding = only(compared(store, "before", "later"))
    assert finding.verdict is verdict
    assert said in sentence(finding, 0.95)


def test_how_many_repeats_would_tell(store: Path) -> None:
    rounds(Study(store, "before"), {"one": (1.0, 1.2, 1.1)})
    rounds(after(store), {"one": (1.1, 1.3, 1.0)})
    finding = only(compared(store, "before", "after"))
    # (2 × 1.97)² × (0.00832 + 0.01764) / log(1.05)², the variances being those of logarithms.
    assert finding.repeats_wanted == pytest.approx(169, abs=1)
    assert sentence(finding, 0.95).endswith(
        f"n = 3, unpaired); about {finding.repeats_wanted} repeats would detect 5 %"
    )


def test_zero_has_a_difference(store: Path) -> None:
    rounds(Study(store, "before"), {"one": scaled(CLOSE, 2.0)}, disk_per_s=0.0)
    study = after(store)
    for number, value in enumerate((1e6, 1.1e6, 0.9e6)):
        study.workload(
            "one",
            [Planted("a", 2.0, disk_per_s=value)],
            tags={"radt.series": "s", "radt.repeat": f"{number + 1}/3"},
        )
    finding = only(compared(store, "before", "after", Quantity.DISK_READ))
    assert finding.verdict is Verdict.DIFFERENT
    assert sentence(finding, 0.95) == (
        "one: B has 1.00 MB/s higher disk read (0 B/s → 1.00 MB/s, 95 % CI 752 KB/s to 1.25 MB/s, "
        "n = 5 and 3, unpaired)"
    )


def test_experiments_are_compared_workload_by_workload(store: Path) -> None:
    rounds(Study(store, "before"), {"one": [2.0, 2.01], "two": [3.0, 3.01], "gone": [1.0]})
    rounds(after(store), {"two": [1.5, 1.51], "one": [4.0, 4.01], "new": [1.0]})
    comparison = compared(store, "before", "after")
    assert [(one.workload, one.verdict) for one in comparison.findings] == [
        ("one", Verdict.WORSE),
        ("two", Verdict.BETTER),
    ]
    assert (comparison.only_a, comparison.only_b) == (["gone"], ["new"])
    assert warnings(comparison) == ["only in A: gone", "only in B: new"]
    assert summary_text(comparison) == "2 comparisons: 1 better, 1 worse"


def test_machines_are_compared_with_themselves(store: Path) -> None:
    """By name and machine; what moved to another one by its name, and that is said."""
    before, study = Study(store, "before"), after(store)
    for host, factor in (("gpu-01", 1.0), ("gpu-02", 2.0)):
        rounds(before, {"one": [2.0 * factor]}, host=host)
        rounds(study, {"one": [3.0 * factor]}, host=host)
    rounds(before, {"moved": [1.0]}, host="gpu-01")
    rounds(study, {"moved": [1.5]}, host="gpu-02")
    comparison = compared(store, "before", "after")
    assert {one.workload: one.effect.value for one in comparison.findings} == pytest.approx(
        {"one on gpu-01": 1.5, "one on gpu-02": 1.5, "moved": 1.5}
    )
    assert warnings(comparison) == ["different conditions: moved: machine gpu-01 → gpu-02"]


def test_kinds_of_runs_are_compared_with_their_like(store: Path) -> None:
    def mixed(study: Study, factors: tuple[float, float]) -> None:
        for number in range(2):
            study.workload(
                "mix",
                [
                    Planted("a", factors[0] + number / 100, name="small", params={"size": "1"}),
                    Planted("b", factors[1] + number / 100, name="large", params={"size": "9"}),
                ],
                tags={"radt.series": "m", "radt.repeat": f"{number + 1}/2"},
            )

    mixed(Study(store, "before"), (2.0, 6.0))
    mixed(after(store), (4.0, 3.0))
    comparison = compared(store, "before", "after", TIME, MAKESPAN)
    assert [(one.name, one.quantity, one.verdict) for one in comparison.findings] == [
        ("mix, small", TIME, Verdict.WORSE),
        ("mix, large", TIME, Verdict.BETTER),
        ("mix", MAKESPAN, Verdict.BETTER),
    ]
    assert [one.partition(":")[0] for one in sentences(comparison)] == ["mix, small", "mix, large"]


def test_scripts_without_a_workload_by_their_names(store: Path) -> None:
    """Of several starts that nothing tells apart the newest counts."""
    study = Study(store, "before")
    for epoch_s in (9.0, 2.0):
        study.workload("", [Planted("a", epoch_s)])
    after(store).workload("", [Planted("a", 3.0)])
    finding = only(compared(store, "before", "after"))
    assert (finding.workload, finding.effect.value) == ("resnet26", pytest.approx(1.5))


def test_more_runs_at_once_take_more_which_is_no_fault(store: Path) -> None:
    card = {"gpu.memory.used": 6e9}
    study = Study(store)
    for number in range(3):
        for label, letters, epoch_s in (("solo", "a", 2.0), ("three", "abc", 3.0)):
            study.workload(
                label,
                [
                    Planted(
                        one,
                        epoch_s * (1 + number / 100),
                        gpu={key: value * len(letters) for key, value in card.items()},
                        watts=200.0,
                    )
                    for one in letters
                ],
                tags={"radt.series": label, "radt.repeat": f"{number + 1}/3"},
            )
    comparison = compared(
        store, "study/solo", "study/three", TIME, RATE, ENERGY, Quantity.GPU_MEMORY_PEAK, MAKESPAN
    )
    assert {one.quantity: one.verdict for one in comparison.findings} == {
        TIME: Verdict.WORSE,
        RATE: Verdict.BETTER,
        ENERGY: Verdict.BETTER,
        Quantity.GPU_MEMORY_PEAK: Verdict.DIFFERENT,
        MAKESPAN: Verdict.DIFFERENT,
    }
    (workload,) = comparison.workloads
    assert [str(one) for one in workload.differences] == ["runs at once 1 → 3"]


def test_what_ran_out_of_memory_is_not_compared_as_if_it_had_not(store: Path) -> None:
    power = {"gpu.power": 200.0}
    Study(store, "before").workload("one", [Planted(letter, 2.0, gpu=power) for letter in "ab"])
    after(store).workload(
        "one",
        [Planted("a", 1.5, gpu=power), Planted("b", 9.0, gpu=power, status=RunStatus.OOM)],
    )
    comparison = compared(store, "before", "after", TIME, MAKESPAN, Quantity.POWER)
    assert [one.quantity for one in comparison.findings] == [TIME]
    assert comparison.workloads[0].missing == [MAKESPAN, Quantity.POWER]
    assert warnings(comparison) == ["different conditions: ends all finished → 1 of 2 OOM"]


def test_an_experiment_is_not_one_workload(store: Path) -> None:
    rounds(Study(store), {"one": [2.0], "two": [3.0]})
    with pytest.raises(UsageError) as caught:
        compared(store, "study", "study/two")
    assert caught.value.message == "study has 2 workloads, study/two is one"
    assert caught.value.remedy == "Name one of them: 'study/one'"
    rounds(Study(store, "single"), {"only": [4.0]})
    assert only(compared(store, "single", "study/two")).workload == "two vs only"


def test_what_else_differs_is_said(store: Path) -> None:
    tags = {"radt.cpu": "EPYC", "radt.python": "3.11.9"}
    a = {"radt.gpus": "A100", "radt.driver": "550", "radt.git.commit": COMMIT_A}
    b = {"radt.gpus": "H100", "radt.driver": "560", "radt.git.commit": COMMIT_B}
    b["radt.git.dirty"] = "true"
    rounds(Study(store, "before"), {"x": [2.0]}, tags=tags | a, params={"lr": "0.1", "b": "8"})
    rounds(after(store), {"x": [2.0]}, tags=tags | b, params={"lr": "0.2", "b": "8"}, host="gpu-02")
    (workload,) = compared(store, "before", "after").workloads
    assert [(str(one), one.is_warning) for one in workload.differences] == [
        ("machine gpu-01 → gpu-02", True),
        ("GPU A100 → H100", True),
        ("driver 550 → 560", True),
        ("files clean → with uncommitted changes", True),
        ("commit a1b2c3d → b9f8e7d", False),
        ("lr 0.1 → 0.2", False),
    ]


def test_many_parameters_are_counted(store: Path) -> None:
    for study, value in ((Study(store, "before"), "1"), (after(store), "2")):
        rounds(study, {"x": [2.0]}, params={f"p{number}": value for number in range(7)})
    (workload,) = compared(store, "before", "after").workloads
    assert [one.what for one in workload.differences] == ["p0", "p1", "p2", "4 more parameters"]


def test_among_many_comparisons_a_small_difference_may_be_chance(store: Path) -> None:
    """One of twelve workloads differs just so; alone it would be a difference."""
    plain = {f"w{number:02}": scaled(CLOSE, 2.0) for number in range(12)}
    rounds(Study(store, "before"), plain)
    rounds(after(store), plain | {"w07": scaled(CLOSE, 2.012)})
    comparison = compared(store, "before", "after")
    alone = only(compared(store, "before/w07", "after/w07"))
    among = comparison.findings[7]
    assert (alone.verdict, alone.holds) == (Verdict.WORSE, True)
    assert (among.verdict, among.holds) == (Verdict.WORSE, False)
    assert alone.effect == among.effect
    assert "may be a false positive among so many comparisons" in sentence(among, 0.95)
    assert false_positives_text(comparison) == (
        "With 12 comparisons at 95 %, expect 0.60 false positives; † may be one of them (Holm)"
    )
    assert sentences(comparison) == [], "twelve are left to the table"


def test_confidence_is_that_asked_for(store: Path) -> None:
    rounds(Study(store, "before"), {"one": scaled(CLOSE, 2.0)})
    rounds(after(store), {"one": scaled(CLOSE, 1.5)})
    wide, narrow = (
        only(compared(store, "before", "after", confidence=one)).effect.interval
        for one in (0.99, 0.8)
    )
    assert wide is not None
    assert narrow is not None
    assert wide.low < narrow.low < narrow.high < wide.high


def test_the_window_is_that_of_both(store: Path) -> None:
    """The first epoch takes 9 s in both, and is all that is asked for."""
    rounds(Study(store, "before"), {"one": [2.0]})
    rounds(after(store), {"one": [1.0]})
    first = only(compared(store, "before", "after", window=WindowSpec.parse("epoch:1")))
    assert (first.a.mean, first.b.mean) == (9.0, 9.0)
    missing = compared(store, "before", "after", window=WindowSpec.parse("train"))
    assert missing.findings == []
    assert any("no phase or span 'train'" in text for text in missing.a.footnotes)


def test_footnotes_of_a_workload_are_its_own(store: Path) -> None:
    """Of two runs of the experiment one is compared."""
    rounds(Study(store), {"one": [2.0], "two": [3.0]})
    comparison = compared(store, "study/one", "study/two", window=WindowSpec.parse("train"))
    assert [text for text in comparison.a.footnotes if "train" in text] == [
        "1 run: no values: no phase or span 'train'."
    ]


def test_which_way_is_better_is_known_of_every_quantity() -> None:
    for quantity in Quantity:
        if quantity.info.unit in ("s", "J", "g"):
            assert quantity.info.direction is Direction.LOWER
    assert Quantity.SPEED_UP.info.direction is RATE.info.direction is Direction.HIGHER
    for quantity in (Quantity.SLOWDOWN, Quantity.TRACKER_CPU):
        assert quantity.info.direction is Direction.LOWER
    for quantity in (Quantity.SM_ACTIVE, Quantity.POWER):
        assert quantity.info.direction is Direction.NEITHER


def test_a_workload_against_itself(store: Path) -> None:
    rounds(Study(store), {"one": [2.0, 2.1, 2.2]})
    finding = only(compared(store, "study/one", "study/one"))
    assert (finding.verdict, finding.effect.value) == (Verdict.EQUAL, 1.0)
    assert math.isclose(finding.a.mean, 2.1)
