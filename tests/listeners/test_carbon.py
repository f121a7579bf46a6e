"""Emissions: energy that is known, times an intensity that is known."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from radt.errors import UsageError
from radt.experiment.columns import parse_listener
from radt.listeners import registry
from radt.listeners.api import options_of
from radt.listeners.carbon import CarbonListener, grid_of
from radt.model import MissingReason
from tests.listeners.conftest import SampledNvml
from tests.support.powercap import RANGE_UJ, SERVER, UJ, Powercap

_KWH_J = 3_600_000.0
_CPU, _GPU = "carbon.emissions.cpu", "carbon.emissions.gpu"

#: Samples after each of the steps that it is given; a step is [files to write, targets].
_READ = """
import json, sys
from pathlib import Path
from radt.listeners.api import Target
from radt.errors import UsageError
from radt.experiment.columns import parse_listener
from radt.listeners import registry
from radt.listeners.api import options_of
from radt.listeners.carbon import CarbonListener
root, options, steps = json.loads(sys.argv[1])
CarbonListener.root = Path(root)
listener = CarbonListener()
listener.options = options
for number, (files, targets) in enumerate(steps):
    for path, text in files.items():
        Path(path).write_text(text)
    if not number:
        listener.open()
    targets = [Target(run_id, tuple(gpus)) for run_id, gpus in targets]
    print(json.dumps([
        [r.metric, r.value, r.entity, r.gpu, r.method, isinstance(r.value, str)]
        for r in listener.sample(targets)
    ]))
listener.close()
"""


def sampled(
    nvml: SampledNvml, root: Path, options: dict[str, str], steps: Sequence[Any]
) -> list[list[list[Any]]]:
    done = subprocess.run(
        [sys.executable, "-c", _READ, json.dumps([str(root), options, steps])],
        env=nvml.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def gpu_line(energy_mj: int) -> str:
    return f"count 1\ngpu 0 55 80000 500 1000 250500 {energy_mj} 61 1410 1593\n"


def card_energy(nvml: SampledNvml, joules: float) -> dict[str, str]:
    return {str(nvml.config): gpu_line(round(joules * 1e3))}


def test_grams_of_a_known_energy(nvml: SampledNvml, tmp_path: Path) -> None:
    """1 kWh of the card and 0.5 kWh of the processors, at 200 g/kWh and PUE 1.5."""
    powercap = Powercap.with_zones(tmp_path / "powercap", SERVER)

    def files(card_j: float, package_j: float) -> dict[str, str]:
        energies = {"intel-rapl:0": package_j, "intel-rapl:1": package_j}
        return card_energy(nvml, card_j) | {
            str(powercap.root / zone / "energy_uj"): f"{round(energy * UJ)}\n"
            for zone, energy in energies.items()
        }

    runs = [["a", ["0"]], ["b", ["0"]]]
    first, second = sampled(
        nvml,
        powercap.root,
        {"intensity": "200", "pue": "1.5"},
        # The packages' counters wrap: 250 of 262 kJ, then 20.
        [[files(500.0, 250_000.0), runs], [files(500.0 + _KWH_J, 20_000.0), runs]],
    )
    assert [one[1] for one in first] == [0.0, 0.0]
    cpu, card = second  # two runs on one card: read once
    package_j = RANGE_UJ / UJ - 250_000 + 20_000
    assert cpu[0] == _CPU
    assert cpu[1] == pytest.approx(2 * package_j / _KWH_J * 200 * 1.5)
    assert card[:4] == [_GPU, pytest.approx(300.0), "gpu0", "0"]
    assert "energy × 200 g CO2e/kWh (given) × PUE 1.5" in card[4]
    assert "CPU packages and memory" in cpu[4]


def test_without_rapl_it_says_what_is_left_out(nvml: SampledNvml, tmp_path: Path) -> None:
    runs = [["a", ["0"]]]
    steps = [[card_energy(nvml, 0.0), runs], [card_energy(nvml, 3600.0), runs]]
    _, (cpu, card) = sampled(nvml, tmp_path / "none", {"country": "dnk"}, steps)
    assert cpu[1:2] + cpu[5:] == [MissingReason.UNSUPPORTED, True]
    assert card[1] == pytest.approx(151.65 / 1000)
    assert "Denmark, mean of 2023, codecarbon 3.3.2" in card[4]
    assert "CPU and memory left out: no energy counters" in card[4]


def test_a_driver_that_starts_anew_loses_nothing_it_counts(
    nvml: SampledNvml, tmp_path: Path
) -> None:
    runs = [["a", ["0"]]]
    energies = (7_200.0, 10_800.0, 3_600.0)
    steps = [[card_energy(nvml, energy), runs] for energy in energies]
    found = sampled(nvml, tmp_path / "none", {"intensity": "1000"}, steps)
    assert [one[1][1] for one in found] == pytest.approx([0.0, 1.0, 2.0])


def test_a_card_that_is_lost_and_was_reset(nvml: SampledNvml, tmp_path: Path) -> None:
    """It comes back with another handle; meanwhile its series is the one that it had."""
    runs = [["a", ["0"]]]

    def step(joules: float, *more: str) -> list[Any]:
        line = gpu_line(round(joules * 1e3)) + "".join(f"{one}\n" for one in more)
        return [{str(nvml.config): line}, runs]

    steps = [
        step(7_200.0),
        step(7_200.0, "lost 0"),
        step(7_200.0, "lost 0"),
        step(3_600.0, "generation 0 1"),
    ]
    found = sampled(nvml, tmp_path / "none", {"intensity": "1000"}, steps)
    assert [card[2] for _, card in found] == ["gpu0"] * 4
    assert [card[1] for _, card in found] == [0.0, "lost", "lost", pytest.approx(1.0)]


def test_a_card_whose_counter_stands_still_emits_something_unknown(
    nvml: SampledNvml, tmp_path: Path
) -> None:
    step = [card_energy(nvml, 7_200.0), [["a", ["0"]]]]
    found = sampled(nvml, tmp_path / "none", {}, [step, step, step])
    assert [card[1] for _, card in found[1:]] == [MissingReason.UNSUPPORTED] * 2


def test_a_card_that_is_not_there_and_one_that_cannot_tell(
    nvml: SampledNvml, tmp_path: Path
) -> None:
    nvml.configure("count 1", gpu_line(0).splitlines()[1])
    ((_, gone),) = sampled(nvml, tmp_path, {}, [[{}, [["a", ["7"]]]]])
    assert gone[:4] == [_GPU, MissingReason.LOST, "7", "7"]


def test_processors_count_where_there_is_no_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No fake library here: NVML cannot be opened."""
    powercap = Powercap.with_zones(tmp_path / "powercap", {"intel-rapl:0": "package-0"})
    monkeypatch.setattr(CarbonListener, "root", powercap.root)
    assert CarbonListener.probe().available
    listener = CarbonListener()
    listener.options = {"intensity": "1000"}
    listener.open()
    assert [one.value for one in listener.sample([])] == [0.0]
    powercap.set("intel-rapl:0", 3_700.0)
    (reading,) = listener.sample([])
    assert reading.value == pytest.approx(1.0)
    assert "without memory, which has no counter" in reading.method
    # A run's beginning and end lie between two samples.
    powercap.set("intel-rapl:0", 7_300.0)
    (reading,) = listener.counters([])
    assert reading.value == pytest.approx(2.0)
    listener.close()


def test_grams_wait_for_the_whole_sum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of two packages cannot be read for a moment: no sum of the rest, and nothing is lost."""
    names = {"intel-rapl:0": "package-0", "intel-rapl:1": "package-1"}
    powercap = Powercap.with_zones(tmp_path / "powercap", names)
    monkeypatch.setattr(CarbonListener, "root", powercap.root)
    listener = CarbonListener()
    listener.options = {"intensity": "1000"}
    listener.open()
    list(listener.sample([]))
    for zone in names:
        powercap.set(zone, 1_900.0)
    (powercap.root / "intel-rapl:1" / "energy_uj").write_text("")
    (reading,) = listener.sample([])
    assert reading.value is MissingReason.LOST
    powercap.set("intel-rapl:1", 1_900.0)
    (reading,) = listener.sample([])
    assert reading.value == pytest.approx(1.0)
    listener.close()


def test_probe_without_any_energy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CarbonListener, "root", tmp_path)
    answer = CarbonListener.probe()
    assert not answer.available
    assert "no energy counters" in answer.reason
    assert "NVML" in answer.reason


def test_without_a_country_it_is_the_world_and_says_so() -> None:
    grid = grid_of({})
    assert 400 < grid.g_per_kwh < 550
    assert "world average" in grid.rule
    assert "no country was given" in grid.rule
    assert grid_of({"intensity": "7", "country": "dnk"}).g_per_kwh == 7


@pytest.mark.parametrize(
    ("word", "value", "message"),
    [
        ("country", "dk", "three letters"),
        ("country", "denmark", "did you mean dnk"),
        ("country", None, "three letters"),
        ("intensity", "green", "from 0 to 2000"),
        ("intensity", "-1", "from 0 to 2000"),
        ("intensity", "nan", "from 0 to 2000"),
        ("pue", "0.9", "from 1 to 5"),
        ("pue", "inf", "from 1 to 5"),
        ("pue", None, "from 1 to 5"),
    ],
)
def test_options_that_make_no_sense(word: str, value: str | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CarbonListener.check_option(word, value)


@pytest.mark.parametrize("option", [("country", "dnk"), ("intensity", "0"), ("pue", "1.3")])
def test_options_that_do(option: tuple[str, str]) -> None:
    CarbonListener.check_option(*option)
    assert grid_of(dict([option])).pue >= 1.0


def test_options_as_they_stand_in_a_listeners_column() -> None:
    choice = parse_listener("carbon:country=dnk:pue=1.3", registry.load())
    assert grid_of(options_of(choice.options)).rule.endswith("codecarbon 3.3.2) × PUE 1.3")
    with pytest.raises(UsageError, match="three letters"):
        parse_listener("carbon:country=denmark", registry.load())


def test_emissions_are_marked_as_estimated() -> None:
    assert all(metric.estimated and metric.unit == "g" for metric in CarbonListener.metrics())
    assert not CarbonListener.by_default
