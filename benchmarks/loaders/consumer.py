"""A process that takes batches: ``python -m benchmarks.loaders.consumer own|shared|ready …``."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import torch

from benchmarks.loaders import data
from benchmarks.loaders.processes import report
from radt.loaders import SharedLoader

_LINGER_S = 0.1


def main() -> None:
    """Take batches until standard input is closed."""
    torch.set_num_threads(1)
    kind, *rest = sys.argv[1:]
    if kind == "own":
        folder, workers, pixels = rest
        take(data.decoding(folder, int(workers), pixels))
    elif kind == "shared":
        name, folder, workers, pixels = rest
        arguments = {"folder": folder, "workers": int(workers), "pixels": pixels}
        with SharedLoader(
            data.decoding, name=name, arguments=arguments, linger_s=_LINGER_S
        ) as loader:
            take(loader)
    else:
        name, mutable = rest
        with SharedLoader(
            data.ready, name=name, mutable=mutable == "mutable", linger_s=_LINGER_S
        ) as loader:
            take(loader)


def take(loader: Iterable[Any]) -> None:
    """Look at batches and report them."""
    for batch in loader:
        if report(data.look_at(batch)):
            break


if __name__ == "__main__":
    main()
