"""Techniques for training on devices that are shared or too small; they need PyTorch.

Each is two or three changed lines of a plain training loop; docs/techniques says when each one
helps. Install them with ``radt[torch]``.
"""

from typing import TYPE_CHECKING

from radt.lazy import names_with_torch

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

if not TYPE_CHECKING:  # a type checker would take every name for granted
    __getattr__, __dir__ = names_with_torch(__name__, _MODULES)
