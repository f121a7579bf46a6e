"""experiments/progressive-resizing: its files are valid, its data are as said, each arm trains."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from radt.model import SOFTWARE
from radt.store.reader import StoreReader
from tests.support.bench import Bench

FOLDER = Path(__file__).parents[2] / "experiments" / "progressive-resizing"
#: What makes an arm a matter of seconds: three sizes, and full size from the fifth epoch at 50 %.
SHORT = (
    "--samples 48 --validation 24 --stored 48 --size 24 --min-size 8 --step 8 --width 2 --seed 1"
)


@pytest.mark.long
def test_a_tiny_variant_has_the_shape_that_the_readme_describes(bench: Bench) -> None:
    for script in ("train.py", "data.py"):
        shutil.copy(FOLDER / script, bench.folder)
    text = (FOLDER / "cpu.csv").read_text(encoding="utf-8")
    header, *rows = (line for line in text.splitlines() if line and not line.startswith("#"))
    chosen = [f"{row} {SHORT} --epochs 6" for row in rows if not re.search("mixed 25|small", row)]
    chosen += [f"{row} --statistics 2" for row in chosen if "mixed 50" in row]
    # All at once, in one workload, takes a third of the time.
    chosen.append(f"{chosen[0]} --stop-at 0 --batch-size 16 --enlarged 64")
    together = [re.sub("^([^,]*),[^,]*,", r"\1, all,", row) for row in chosen]
    file = bench.experiment("\n".join([header, *together]) + "\n")
    bench.radt("experiment.csv", "--quiet")
    assert [row["Status"] for row in bench.rows(file)] == ["FINISHED"] * 7
    with bench.reader as reader:
        series = dict(_series(reader))
    assert series["fixed until it reaches it"]["steps"] == [48 / 16]
    fixed, mixed, exhaustive = series["fixed"], series["mixed"], series["exhaustive"]
    assert len(fixed["accuracy"]) == len(mixed["accuracy"]) == 6
    # Batches of small images are larger, so that a growing arm takes fewer steps.
    assert fixed["steps"][-1] == 6 * 48 / 8
    assert series["device"]["steps"] == fixed["steps"]
    assert mixed["steps"][0] == 1  # 72 would fit
    assert exhaustive["steps"][-1] < fixed["steps"][-1]
    assert mixed["steps"][-1] < fixed["steps"][-1]
    assert mixed["loader.image_size"][0] == exhaustive["loader.image_size"][0] == 8
    assert mixed["loader.batch_size"][0] == 48
    assert "loader.image_size" not in fixed
    (enlarged, *_) = (bench.folder / "data-progressive" / "train-48-64").glob("*.jpg")
    assert Image.open(enlarged).size == (64, 64)
    copies = bench.folder / "data-progressive" / "copies"
    assert {path.parent.name for path in copies.rglob("*.jpg")} == {"8-q90", "16-q90", "24-q90"}
    # Copies are loaded in the same order and batches.
    assert series["mixed with copies"]["steps"][0] == 1
    # Statistics for the validation change nothing else.
    assert series["mixed with statistics"]["loss"] == mixed["loss"]


def _series(reader: StoreReader) -> Iterator[tuple[str, dict[str, list[float]]]]:
    """The values of each run's metrics, by its arm."""
    for run in reader.runs():
        params = reader.params(run.run_id)
        metrics = {
            one.metric: reader.samples(run.run_id, one.series_no).values.tolist()
            for one in reader.series([run.run_id])
            if one.listener == SOFTWARE
        }
        name = params["arm"] + " with copies" * (params["copies"] == "True")
        name += " with statistics" * (params["statistics"] != "0")
        yield name + " until it reaches it" * (float(params["stop_at"]) <= 1), metrics
