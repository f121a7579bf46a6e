"""Time that ``import radt`` adds to the start of a training script, compared with peers.

    python -m benchmarks.import_time [--rounds 15]

Whole processes are timed (``python -c "import …"``) in turns, including bare Python; the table
shows medians and the difference from bare Python. Peers that are not installed are left out.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from dataclasses import dataclass

from benchmarks.log_metric import FOLDER
from benchmarks.peers import peer_python


@dataclass(frozen=True, slots=True)
class Import:
    """A timed program, and the interpreter that runs it."""

    label: str
    program: str
    python: str


def timed_s(one: Import) -> float:
    """Return the wall time of one process.

    Raises:
        subprocess.CalledProcessError: The import fails.
    """
    begun_s = time.perf_counter()
    # Without -I: training scripts start like this, with the environment's .pth files.
    subprocess.run([one.python, "-c", one.program], check=True, capture_output=True)
    return time.perf_counter() - begun_s


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    lines = (FOLDER / "requirements.txt").read_text(encoding="utf-8").splitlines()
    peers = str(peer_python("trackers", [line for line in lines if line and line[0] != "#"]))
    here = sys.executable
    candidates = [
        Import("bare Python", "pass", here),
        Import("import radt", "import radt", here),
        Import("import radt; radt.Run", "import radt; radt.Run", here),
        Import("import mlflow", "import mlflow", here),
        Import("bare Python, peers'", "pass", peers),
        Import("import wandb", "import wandb", peers),
        Import("import tensorboard", "import tensorboard.summary", peers),
    ]
    times: dict[str, list[float]] = {}
    for number in range(args.rounds + 1):
        for one in candidates:
            try:
                taken_s = timed_s(one)
            except subprocess.CalledProcessError:
                continue
            if number:  # the first process reads modules from disk and compiles them
                times.setdefault(one.label, []).append(taken_s)
    medians = {label: sorted(found)[len(found) // 2] for label, found in times.items()}
    bare = {here: medians["bare Python"], peers: medians["bare Python, peers'"]}
    ours_s = medians["import radt"] - bare[here]
    print(f"{'ms':<24}{'process':>9}{'adds':>9}{'ratio':>9}")
    for one in candidates:
        if one.label in medians:
            added_s = medians[one.label] - bare[one.python]
            ratio = f"{added_s / ours_s:>8.1f}×" if one.program != "pass" else ""
            print(f"{one.label:<24}{medians[one.label] * 1e3:>9.1f}{added_s * 1e3:>9.1f}{ratio}")


if __name__ == "__main__":
    main()
