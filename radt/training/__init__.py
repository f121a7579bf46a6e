"""Techniques for training on devices that are shared or too small; they need PyTorch.

Each is two or three changed lines of a plain training loop; docs/techniques says when each one
helps. Install them with ``radt[torch]``.
"""

import importlib
from importlib.util import find_spec
from typing import TYPE_CHECKING

from radt.errors import MissingPackageError

if TYPE_CHECKING:
    from radt.training.averaging import ElasticAverager
    from radt.training.evaluation import Sums
    from radt.training.job import Job
    from radt.training.lease import DeviceLease
    from radt.training.offloading import offload
    from radt.training.preemption import preemptible
    from radt.training.trainer import MultiTrainer
    from radt.training.validation import OverlappedValidator, ValidationResult

__all__ = [
    "DeviceLease",
    "ElasticAverager",
    "Job",
    "MultiTrainer",
    "OverlappedValidator",
    "Sums",
    "ValidationResult",
    "offload",
    "preemptible",
]

#: The module of each name; torch is imported with its first use.
_MODULES = {
    "DeviceLease": "radt.training.lease",
    "ElasticAverager": "radt.training.averaging",
    "Job": "radt.training.job",
    "MultiTrainer": "radt.training.trainer",
    "OverlappedValidator": "radt.training.validation",
    "Sums": "radt.training.evaluation",
    "ValidationResult": "radt.training.validation",
    "offload": "radt.training.offloading",
    "preemptible": "radt.training.preemption",
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        if find_spec("torch") is None:
            raise MissingPackageError(
                "radt.training needs PyTorch, which is not installed",
                "pip install 'radt[torch]'",
            )
        value = getattr(importlib.import_module(_MODULES[name]), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
