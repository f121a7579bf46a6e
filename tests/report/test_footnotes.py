"""What readers of a report are told, and that they are told nothing where all is well."""

from __future__ import annotations

from radt.analysis.report import ReportCache
from radt.model import MarkerKind
from radt.store.reader import StoreReader
from radt.store.records import LedgerRecord, MarkerRecord
from radt.tags import PRUNED
from tests.frontend.report_support import Planted, Study
from tests.report.series_support import report_of

MS = 1_000_000


def pair(study: Study, label: str, skew_ns: int | None = 3 * MS, **more: str) -> tuple[str, str]:
    """Two runs side by side; their ids."""
    workload_id = study.workload(label, [Planted(c, 3.0) for c in "ab"], **more)
    study.writer.update_workload(workload_id, start_skew_ns=skew_ns)
    return study.run_id(workload_id, "a"), study.run_id(workload_id, "b")


def notes_of(study: Study, cache: ReportCache | None = None) -> tuple[str, ...]:
    return report_of(study, cache=cache).footnotes


def ledger(run_id: str, listener: str, received: int, expected: int = 1000) -> LedgerRecord:
    return LedgerRecord(run_id, listener, 1.0, expected, received, expected - received, 5 * MS)


def test_nothing_is_said_where_all_is_well(study: Study) -> None:
    study.workload("S", [Planted("a", 2.0)])
    for run_id in pair(study, "2x", skew_ns=20 * MS):
        study.writer.put_ledger(ledger(run_id, "top", 990))
        study.writer.put_tags(run_id, {"radt.git.commit": "a" * 40, "radt.python": "3.11.2"})
        study.writer.put_markers(
            [MarkerRecord(run_id, 50, MarkerKind.EVENT, "devices verified", study.now_ns)]
        )
    assert notes_of(study) == ()


def test_runs_that_did_not_start_together(study: Study) -> None:
    pair(study, "2x", 21 * MS)
    pair(study, "late", 1200 * MS)
    pair(study, "unknown", None)
    assert notes_of(study) == (
        "Runs started more than 20.0 ms apart: late 1.20 s, 2x 21.0 ms.",
        "The start skew is unknown: unknown.",
    )


def test_a_new_skew_is_seen_though_no_run_changed(study: Study) -> None:
    cache = ReportCache()
    pair(study, "2x")
    assert notes_of(study, cache) == ()
    with StoreReader(study.store) as reader:
        (workload,) = reader.workloads(study.experiment)
    study.writer.update_workload(workload.workload_id, start_skew_ns=30 * MS)
    assert notes_of(study, cache) == ("Runs started more than 20.0 ms apart: 2x 30.0 ms.",)


def test_listeners_that_missed_samples(study: Study) -> None:
    first, second = pair(study, "2x")
    study.writer.put_ledger(ledger(first, "top", 989))
    study.writer.put_ledger(ledger(second, "top", 700))
    study.writer.put_ledger(ledger(second, "smi", 500))
    study.writer.put_ledger(ledger(second, "dcgm", 0, expected=0))  # was never there
    assert notes_of(study) == ("Samples are missing: smi of 2x has 50 %, top of 2x has 70 %.",)


def test_restarts_and_what_was_thinned(study: Study) -> None:
    first, second = pair(study, "2x")
    for run_id in (first, second):
        study.writer.put_markers(
            [
                MarkerRecord(run_id, 50, MarkerKind.EVENT, "collector restarted", study.now_ns),
                MarkerRecord(run_id, 51, MarkerKind.EVENT, "listener smi dropped", study.now_ns),
                # What a script calls so itself is its own matter.
                MarkerRecord(run_id, 52, MarkerKind.SPAN, "server restarted", study.now_ns),
            ]
        )
    study.writer.put_tags(second, {PRUNED: "summaries"})
    assert notes_of(study) == (
        "Collector restarted: 2x.",
        "Listener smi dropped: 2x.",
        "`radt prune` thinned the samples; values are approximate in every window but the epochs "
        "after the first: 2x.",
    )


def test_conditions_that_differ_between_what_is_compared(study: Study) -> None:
    for number, commit in enumerate("aab"):
        for run_id in pair(study, f"w{number}"):
            tags = {"radt.git.commit": commit * 40, "radt.gpus": "A100", "radt.driver": "550"}
            study.writer.put_tags(run_id, tags)
    pair(study, "nothing known")
    assert notes_of(study) == ("Commits differ: aaaaaaaaaa in w0, w1; bbbbbbbbbb in w2.",)
    # Other machines are not compared.
    for run_id in pair(study, "elsewhere", host="gpu-02"):
        study.writer.put_tags(run_id, {"radt.git.commit": "c" * 40, "radt.gpus": "H100"})
    assert notes_of(study) == (
        "Commits differ: aaaaaaaaaa in w0 on gpu-01, w1 on gpu-01; bbbbbbbbbb in w2 on gpu-01.",
    )


def test_a_script_without_a_workload_goes_by_its_own_name(study: Study) -> None:
    workload_id = study.workload("", [Planted("a", 2.0)])
    study.writer.put_ledger(ledger(study.run_id(workload_id, "a"), "top", 10))
    assert notes_of(study) == ("Samples are missing: top of resnet26 has 1.0 %.",)


def test_a_workload_on_several_machines(study: Study) -> None:
    _, second = pair(study, "2x")
    study.writer.update_run(second, host="gpu-02")
    (note,) = notes_of(study)
    assert note.startswith("Several machines, whose clocks may differ, ran 2x.")


def test_many_are_counted(study: Study) -> None:
    for number in range(7):
        pair(study, f"w{number}", 30 * MS)
    (note,) = notes_of(study)
    assert note.endswith("w3 30.0 ms and 3 more.")
    assert note.count("30.0 ms") == 4
