"""Using decoded samples several times: decodings saved, and what another use costs."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass

import torch

from benchmarks.loaders.echo_ways import SAMPLES, USES, WORKERS, Decoding, Way
from benchmarks.results import Bar, Findings, Table
from radt.loaders import EchoLoader

#: Height and width of the files, edge of the decoded images, number of samples.
_SIZES = {"500×375 to 224": (376, 504, 224, 60), "128×128 to 32": (128, 128, 32, 200)}
_TARGET_USE = 0.05
#: Epochs with three uses each, epochs of fresh samples, and the decodings saved.
_SCHEDULES = ((8, 16, 0.40), (11, 7, 0.55))


@dataclass(frozen=True)
class _Loaded:
    """What a way of loading took, and what it gave."""

    uses: int
    samples: int
    decoded: int
    different: int
    wall_s: float
    cpu_s: float


def measure(rounds: int, monai: str | None) -> Findings:
    """Measure all in turns.

    Args:
        rounds: How many.
        monai: An interpreter with torch, pillow and MONAI; None to leave its ways out.
    """
    torch.set_num_threads(1)
    findings = Findings(bars=[_saved(*schedule) for schedule in _SCHEDULES])
    for part in (_cost_of_a_use(rounds), _ways(rounds, monai)):
        findings.tables += part.tables
        findings.bars += part.bars
    return findings


def _saved(echo_epochs: int, fresh_epochs: int, target: float) -> Bar:
    """Count decodings of echoing and fine-tuning, where they happen."""
    dataset = Decoding(8, 8, 8, 50)
    with EchoLoader(dataset, None, batch_size=10, repeats=USES, buffer=20) as loader:
        uses = 0
        for epoch in range(echo_epochs + fresh_epochs):
            if epoch == echo_epochs:
                loader.finetune()
            uses += sum(len(index) for _, index in loader)
    saved = 1 - dataset.decoded.value / uses
    epochs = echo_epochs * USES + fresh_epochs
    return Bar(
        f"{echo_epochs}×{USES}+{fresh_epochs}: decodings saved, as counted: {target:.0%}",
        f"{saved:.1%} ({dataset.decoded.value:,} for {uses:,} uses)",
        uses == epochs * len(dataset) and round(saved, 9) == target,
    )


def _cost_of_a_use(rounds: int) -> Findings:
    """Measure CPU time of a use beyond the first, from ten uses a sample against two."""
    table = Table(
        "CPU time of another use of a decoded image, no augmentation",
        ("files", "decode", "another use", "use / decode"),
        note=f"Medians of {rounds} rounds in turns, in one process. A use plans it, and copies the "
        "image from the buffer.",
    )
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in _SIZES}
    for _ in range(rounds):
        for name, (height, width, edge, samples) in _SIZES.items():
            found[name].append(_decode_and_use_s(Decoding(height, width, edge, samples)))
    shares = {}
    for name, costs in found.items():
        shares[name] = statistics.median(use / decode for decode, use in costs)
        decode_s, use_s = (statistics.median(each) for each in zip(*costs, strict=True))
        cells = (f"{decode_s * 1e3:.2f} ms", f"{use_s * 1e3:.3f} ms", f"{shares[name]:.1%}")
        table.rows.append((name, *cells))
    name = next(iter(shares))
    bar = Bar(
        f"another use of {name} pixels: at most {_TARGET_USE:.0%} of a decoding",
        f"{shares[name]:.1%}",
        shares[name] <= _TARGET_USE,
    )
    return Findings([table], [bar])


def _decode_and_use_s(dataset: Decoding) -> tuple[float, float]:
    few, many = 2, 10
    beside_s = {}
    for repeats in (few, many):
        dataset.cpu_s, dataset.decoded.value = 0.0, 0
        with EchoLoader(
            dataset, None, batch_size=20, repeats=repeats, buffer=50, collate_fn=len
        ) as loader:
            began_s = time.process_time()
            for _ in loader:
                pass
            beside_s[repeats] = time.process_time() - began_s - dataset.cpu_s
    decode_s = dataset.cpu_s / dataset.decoded.value
    return decode_s, (beside_s[many] - beside_s[few]) / ((many - few) * len(dataset))


def _ways(rounds: int, monai: str | None) -> Findings:
    python = {Way.PLAIN: sys.executable, Way.ECHO: sys.executable}
    if monai is not None:
        python |= {Way.THREAD: monai, Way.SMART: monai}
    found: dict[Way, list[_Loaded]] = {way: [] for way in python}
    for _ in range(rounds):
        for way, interpreter in python.items():
            found[way].append(_load(interpreter, way))
    plain = found[Way.PLAIN]
    table = Table(
        f"{SAMPLES} JPEGs of 500×375 pixels, {USES} uses of each, {WORKERS} workers",
        ("way", "samples", "uses", "decoded", "different", "CPU", "time"),
        note=f"Medians of {rounds} rounds in turns; CPU of all processes and time against "
        "the DataLoader's. Different: uses that differ from all others by their augmentation. "
        "EchoLoader and ThreadDataLoader have repeats=3; SmartCacheDataset keeps a quarter of the "
        "samples and replaces a third of them after each pass, without worker processes.",
    )
    for way, loads in found.items():
        one = loads[0]
        counts = (one.samples, one.uses, one.decoded, one.different)
        cpu = statistics.median(o.cpu_s / p.cpu_s for o, p in zip(loads, plain, strict=True))
        wall = statistics.median(o.wall_s / p.wall_s for o, p in zip(loads, plain, strict=True))
        table.rows.append((way, *(f"{count:,}" for count in counts), f"{cpu:.2f}", f"{wall:.2f}"))
    return Findings([table])


def _load(python: str, way: Way) -> _Loaded:
    command = [python, "-m", "benchmarks.loaders.echo_ways", way]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        raise RuntimeError(f"{way} failed:\n{done.stderr}")
    return _Loaded(**json.loads(done.stdout.splitlines()[-1]))
