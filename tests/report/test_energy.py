"""Energy of workloads, from a real store with counters that are known."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from radt.analysis.energy import WorkloadEnergy
from radt.analysis.report import read_report
from radt.cli.report import command
from radt.model import RunStatus, Scope, SeriesKind
from radt.render.report import energy_table, summary_table
from radt.render.terminal import table_lines
from radt.store.reader import StoreReader
from radt.store.records import RunRecord, Samples, SeriesBatch, SeriesRecord, WorkloadRecord
from radt.store.writer import StoreWriter

S = 1_000_000_000
ORIGIN_NS = 1_750_000_000 * S
RULE = "share of the card's energy above idle, by SM time"

#: Joules by second.
Readings = Mapping[float, float]


class Lab:
    """Writes the energy that runs have seen."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.writer = StoreWriter(home / "radt.db")
        self.count = 0

    def run(
        self,
        workload: str,
        letter: str,
        *,
        gpus: Mapping[str, Readings] | None = None,
        estimate: Readings | None = None,
        host: str = "h",
        listener: str = "smi",
        status: RunStatus = RunStatus.FINISHED,
    ) -> None:
        run_id = f"{self.count:032x}"
        workload_id = f"w{workload}"
        self.count += 1
        created_ns = ORIGIN_NS + self.count
        self.writer.put_workload(WorkloadRecord(workload_id, "study", workload, ORIGIN_NS))
        self.writer.put_run(
            RunRecord(
                *(run_id, workload_id, "study", workload, letter, "net", created_ns, status),
                host=host,
            )
        )
        counters = [("gpu.energy", Scope.GPU, gpu, seen) for gpu, seen in (gpus or {}).items()]
        if estimate is not None:
            counters.append(("process.gpu.energy", Scope.PROCESS, "gpu0", estimate))
        for number, (metric, scope, entity, seen) in enumerate(counters):
            estimated = scope is Scope.PROCESS
            record = SeriesRecord(
                *(run_id, number, listener, metric, "J", scope, SeriesKind.COUNTER, entity, 1.0),
                method=RULE if estimated else "",
                estimated=estimated,
            )
            self.writer.add_series([record])
            times_ns = np.array([ORIGIN_NS + round(at * S) for at in seen], dtype=np.int64)
            values = np.array(list(seen.values()), dtype=np.float64)
            self.writer.append(run_id, [SeriesBatch(number, Samples(times_ns, values))])

    def energy(self, workload: str) -> WorkloadEnergy:
        with StoreReader(self.writer.path) as reader:
            found = {one.label: one for one in read_report(reader, "study").workloads}
        return found[workload].energy


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


def test_a_shared_card_is_counted_once(lab: Lab) -> None:
    """The second run starts later and stays longer; both read the one counter at once."""
    lab.run("pair", "a", gpus={"gpu0": {0: 1000, 1: 1100, 2: 1200}})
    lab.run("pair", "b", gpus={"gpu0": {1: 1100, 2: 1200, 3: 1350}})
    assert lab.energy("pair").gpus_j == 350.0
    assert lab.energy("pair").runs == []


def test_cards_add_up_also_of_two_machines(lab: Lab) -> None:
    both = {"gpu0": {0: 10, 1: 30}, "gpu1": {0: 500, 1: 505}}
    lab.run("wide", "a", gpus=both)
    lab.run("wide", "b", gpus={"gpu0": {0: 7000, 1: 7100}}, host="other")
    assert lab.energy("wide").gpus_j == 125.0


def test_a_driver_loaded_anew_takes_nothing_away(lab: Lab) -> None:
    lab.run("solo", "a", gpus={"gpu0": {0: 1000, 1: 1100, 2: 40, 3: 100}})
    assert lab.energy("solo").gpus_j == 200.0


def test_what_the_card_used_while_no_run_was_there_is_nobodys(lab: Lab) -> None:
    """A row that was resumed an hour later."""
    lab.run("pair", "a", gpus={"gpu0": {0: 1000, 1: 1100}})
    lab.run("pair", "b", gpus={"gpu0": {3600: 90_000, 3601: 90_050}})
    assert lab.energy("pair").gpus_j == 150.0


def test_a_run_that_missed_readings_has_its_neighbours(lab: Lab) -> None:
    lab.run("pair", "a", gpus={"gpu0": {0: 0, 3: 300}})
    lab.run("pair", "b", gpus={"gpu0": {1: 100, 2: 200}})
    assert lab.energy("pair").gpus_j == 300.0


def test_two_listeners_do_not_count_a_card_twice(lab: Lab) -> None:
    """Each counts from another start: mixed, every reading would look like a reset."""
    for letter in "ab":
        lab.run("pair", letter, gpus={"gpu0": {0: 1000, 1: 1100}})
    lab.run("pair", "c", gpus={"gpu0": {0: 5, 0.5: 55, 1: 105}}, listener="dcgm")
    assert lab.energy("pair").gpus_j == 100.0


def test_the_whole_is_read_by_who_apportions_it(lab: Lab) -> None:
    """Though more runs have another listener, or its readings go further."""
    lab.run("pair", "a", gpus={"gpu0": {0: 1000, 1: 1100}}, estimate={0: 0, 1: 60})
    for letter in "bc":
        lab.run("pair", letter, gpus={"gpu0": {0: 5, 2: 305}}, listener="dcgm")
    energy = lab.energy("pair")
    assert (energy.gpus_j, energy.rest_j) == (100.0, 40.0)


def test_without_a_card_or_with_one_reading_there_is_none(lab: Lab) -> None:
    lab.run("solo", "a")
    lab.run("short", "a", gpus={"gpu0": {0: 1000}})
    assert lab.energy("solo") == WorkloadEnergy(None, [])
    assert lab.energy("short").gpus_j is None


def test_a_card_that_was_not_counted_makes_the_sum_a_lower_bound(lab: Lab) -> None:
    both = {"gpu0": {0: 10, 1: 30}, "gpu1": {0: 500, 1: 505}}
    lab.run("wide", "a", gpus=both)
    lab.run("still", "a", gpus=both | {"gpu1": {0: 500, 1: 500}})
    lab.run("lost", "a", gpus=both | {"gpu1": {0: 500}})
    energies = [lab.energy(label) for label in ("wide", "still", "lost")]
    assert [(each.gpus_j, each.is_lower_bound) for each in energies] == [
        (25.0, False),
        (20.0, True),
        (20.0, True),
    ]
    with StoreReader(lab.writer.path) as reader:
        (note,) = [note for note in read_report(reader, "study").footnotes if "lower bound" in note]
    assert note.endswith("The energy is a lower bound: still, lost.")


def mixed(lab: Lab) -> None:
    card = {"gpu0": {0: 0, 1: 600, 2: 1000}}
    lab.run("pair", "a", gpus=card, estimate={0: 0, 1: 300, 2: 500})
    lab.run("pair", "b", gpus=card, estimate={1: 0, 2: 250})


def test_estimates_of_runs_leave_the_rest_to_nobody(lab: Lab) -> None:
    mixed(lab)
    energy = lab.energy("pair")
    assert [(run.letter, run.estimated_j) for run in energy.runs] == [("a", 500.0), ("b", 250.0)]
    assert energy.rest_j == 250.0


def test_table_of_estimates_at_80_columns(lab: Lab) -> None:
    mixed(lab)
    lab.run("cpu", "a")
    with StoreReader(lab.writer.path) as reader:
        workloads = read_report(reader, "study").workloads
    tables = (summary_table(workloads), energy_table(workloads))
    lines = [line.plain for table in tables for line in table_lines(table, 80)]
    assert lines == [
        "  workload  runs     took  time/epoch  vs solo  samples/s  cpu   energy",
        "  pair      2 × net     –           –        –          –    –  1,000 J",
        "  cpu       net         –           –        –          –    –        –",
        "  workload  run              energy, est.  of its GPUs",
        "  pair      a  net                  500 J         50 %",
        "            b  net                  250 J         25 %",
        "            idle and others         250 J         25 %",
    ]


def test_the_report_names_the_rule_only_where_something_is_estimated(lab: Lab) -> None:
    lab.run("solo", "a", gpus={"gpu0": {0: 0, 1: 100}})
    plain = CliRunner().invoke(command, ["study", "--home", str(lab.home)])
    assert "100 J" in plain.output
    assert "Estimated" not in plain.output
    mixed(lab)
    full = CliRunner().invoke(command, ["study", "--home", str(lab.home)])
    assert full.exit_code == 0
    assert f"Estimated energy: {RULE}" in full.output
