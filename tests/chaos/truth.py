"""What a round's scripts wrote, by their own word: the truth that stores are compared with."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

#: Values of a burst that is written down with one fsync.
MAX_BURST = 400
#: Values of one metric; the next ones have another name.
PER_METRIC = 700

#: Logs values, and writes down those that it has logged after each burst. Arguments: folder of the
#: logs, seed, number of values.
SCRIPT = f"""\
import os, random, sys, time
import radt
folder, seed, values = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
chance = random.Random(seed)
with radt.Run(listeners="top@200ms", experiment="chaos") as run:
    log = os.open(os.path.join(folder, run.id + ".log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    def note(text):
        os.write(log, text.encode())
        os.fsync(log)
    note(f"seed {{seed}}\\n")
    step = 0
    while step < values:
        burst = range(step, min(values, step + chance.randrange(1, {MAX_BURST})))
        for step in burst:
            value = (step * 2654435761 % 2**32 + seed) / 7
            run.log_metric(f"m{{step // {PER_METRIC}}}", value, step)
        note("".join(f"{{step}}\\n" for step in burst))
        step += 1
        time.sleep(chance.random() * 0.1)
    note("end\\n")
note("done\\n")
"""


@dataclass
class Log:
    """What one run's script wrote down.

    Attributes:
        values: It has logged the steps 0 to so many less one.
        ends: It was about to leave the run's block.
        done: It has left the run's block.
    """

    run_id: str
    seed: int = 0
    values: int = 0
    ends: bool = False
    done: bool = False

    def value(self, step: int) -> float:
        """Return the value that the script logs at a step."""
        return (step * 2654435761 % 2**32 + self.seed) / 7

    def name(self, step: int) -> str:
        """Return the metric that the script logs at a step."""
        return f"m{step // PER_METRIC}"


def read_logs(folder: Path) -> list[Log]:
    """Read the logs of a folder, oldest first; lines that are not whole do not count."""
    files = sorted(folder.glob("*.log"), key=lambda file: file.stat().st_mtime_ns)
    return [_read(file) for file in files]


def _read(file: Path) -> Log:
    log = Log(file.stem)
    for line in file.read_text(encoding="ascii").splitlines(keepends=True):
        match line.split():
            case _ if not line.endswith("\n"):
                break
            case ["seed", number]:
                log.seed = int(number)
            case ["end"]:
                log.ends = True
            case ["done"]:
                log.done = True
            case [step]:
                log.values = int(step) + 1
    return log


@dataclass
class Copy:
    """What one store has of a run: values by metric and step, in the order they were written."""

    status: str
    points: list[tuple[str, int, float]] = field(default_factory=list)


def compare(log: Log, copy: Copy, lost: int = 0) -> list[str]:
    """Return what is wrong with a copy of a run.

    Values that were logged after the last that is written down may be there or not.

    Args:
        log: The truth.
        copy: What a store has.
        lost: So many values are said to be lost.
    """
    wrong = []
    seen: set[tuple[str, int]] = set()
    for name, step, value in copy.points:
        if (name, step) in seen:
            wrong.append(f"{name} has step {step} twice")
        seen.add((name, step))
        if not 0 <= step < log.values + MAX_BURST or name != log.name(step):
            wrong.append(f"{name} has step {step}, which was never logged")
        elif value != log.value(step):
            wrong.append(f"{name} has {value!r} at step {step} instead of {log.value(step)!r}")
    missing = [step for step in range(log.values) if (log.name(step), step) not in seen]
    if len(missing) > lost:
        which = f"steps {missing[0]} to {missing[-1]}"
        counted = f", {lost} counted as lost" if lost else ""
        wrong.append(f"{len(missing)} of {log.values} values missing ({which}){counted}")
    return [*wrong[:3], *([f"and {len(wrong) - 3} more"] if len(wrong) > 3 else [])]
