"""Epochs with serial validation and epochs beside a validator's process, in turns.

python -m benchmarks.training.validation_epochs

Trains the load ``small`` of experiments/overlapped-validation, whose folder must be in PYTHONPATH.
Neighbours in time meet the same disturbances, so a loss of 1 % can be seen that whole trainings
hide in their noise. Durations are written as JSON.
"""

from __future__ import annotations

import importlib
import json
import time
from dataclasses import asdict, dataclass, field

PAIRS = 20


@dataclass(slots=True)
class Epochs:
    """Durations of both kinds, in pairs.

    Attributes:
        serial_s: Of an epoch and a serial validation.
        process_s: Of an epoch beside which a process validates, with the copy and the wait.
        once_s: How long the validator's making and its end stop the training.
    """

    serial_s: list[float] = field(default_factory=list)
    process_s: list[float] = field(default_factory=list)
    once_s: float = 0.0


def measured() -> Epochs:
    """Train both ways in turns, each second pair in the other order."""
    import torch

    import radt
    from radt.training import OverlappedValidator

    script = importlib.import_module("train")
    torch.set_num_threads(1)
    load, found = script.LOADS["small"], Epochs()
    training = script.Training(load, 0)
    validation = script.Validation(script.samples(load, load.validation, seed=1), load.batch, 0)
    with radt.Run() as run:
        training.epoch(run)  # the first one is for warming up
        began_s = time.perf_counter()
        with OverlappedValidator(validation, training.model) as validator:
            found.once_s = time.perf_counter() - began_s
            validator.submit(0)
            validator.wait(0)  # its process has started
            for pair in range(1, PAIRS + 1):
                for side in ("serial", "process")[:: 1 if pair % 2 == 0 else -1]:
                    began_s = time.perf_counter()
                    if side == "process":
                        validator.submit(pair)
                    training.epoch(run)
                    if side == "process":
                        validator.wait(pair)
                        found.process_s.append(time.perf_counter() - began_s)
                    else:
                        script.serially(validation, training.model)
                        found.serial_s.append(time.perf_counter() - began_s)
            began_s = time.perf_counter()
        found.once_s += time.perf_counter() - began_s
    return found


if __name__ == "__main__":
    print(json.dumps(asdict(measured())))
