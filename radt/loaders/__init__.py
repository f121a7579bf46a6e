"""Data loaders that share, resize and repeat data. They need PyTorch (``radt[torch]``).

Each loader wraps the script's own loader or dataset and takes its place. docs/techniques describes
when each one helps.

A `protocol.Loader` has the methods that all share: iterate, ``len``, ``set_epoch``, ``state_dict``,
``close``. tests/loaders/test_protocol.py tests them for every loader. `batches` says what a batch
is, for `radt.training`, too. Random choices of the progressive and the echoing loader are pure
functions of seed, epoch and index (`plan`), so these go on in mid-epoch by planning it again.
Loaders record ``loader.*`` metrics in the active run, and nothing without one (`paced`).
"""

from typing import TYPE_CHECKING

from radt.lazy import names_with_torch

if TYPE_CHECKING:
    from radt.loaders.echo.loader import EchoLoader
    from radt.loaders.echo.plateau import Plateau
    from radt.loaders.progressive.loader import ProgressiveLoader
    from radt.loaders.progressive.rescale import BatchScaledLR
    from radt.loaders.protocol import Loader
    from radt.loaders.shared.client import SharedLoader

__all__ = [
    "BatchScaledLR",
    "EchoLoader",
    "Loader",
    "Plateau",
    "ProgressiveLoader",
    "SharedLoader",
]

#: Module of each name, so that torch is imported on first use.
_MODULES = {
    "BatchScaledLR": "radt.loaders.progressive.rescale",
    "EchoLoader": "radt.loaders.echo.loader",
    "Loader": "radt.loaders.protocol",
    "Plateau": "radt.loaders.echo.plateau",
    "ProgressiveLoader": "radt.loaders.progressive.loader",
    "SharedLoader": "radt.loaders.shared.client",
}

if not TYPE_CHECKING:  # with `__getattr__`, type checkers would accept any name
    __getattr__, __dir__ = names_with_torch(__name__, _MODULES)
