"""Techniques for training on devices that are shared or too small; they need PyTorch.

Each is two or three changed lines of a plain training loop; docs/techniques says when each one
helps. Install them with ``radt[torch]``.

**In common.** A `job` is one training as an object. `calling` says how a model is called with a
batch and where its loss is. ``Job.tensors`` has the state of a training: the model's `weights`,
the tensors of its loss, and all others that its optimiser updates. `weights.BeforeStep` keeps and
restores the values that a step changes before its optimiser runs.

**Many jobs in a process** (`trainer`). A *turn* is an epoch of a *team*: one job, or several in
`lockstep`. `queue` forms the next team of jobs that are ready and fit into `memory`, by the rank of
a policy (`policies`). Jobs see nothing of each other: `randomness` swaps random states, and a
`feed` keeps each one's position in its loader. `fusion` trains equal models at once while that is
faster (`stack`, `chain`). `failures` repeats a step that ran out of memory, `checkpoints` keeps
states, and `guard` starts the script again after a crash.

**Sharing a device** (`lease`). A lease is exclusive use of a device among threads and processes.
`preemption` measures passes of a model, cuts them into segments, and hands the lease over between
these, forward and backward. `migration` leaves a step there, undoes it, and repeats the batch on
another device.

**Validation beside training** (`validation`). A `snapshot` has two slots in shared memory: one is
validated, the other belongs to the last result. The model is validated in a thread
(`validation_thread`) or in a process of its own (`validation_process`).

**Averaging replicas** (`averaging`). Replicas meet at torchft's lighthouse (`lighthouse`), which
gives each round the same list of members to all (`meeting`), so that they decide alike without
another message. `exchange` counts samples and sums tensors, `transport` sends the state to
newcomers. Parameters change once all have confirmed a round; one that fails anywhere is repeated.

**Models larger than memory**: `radt.training.offloading`.
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
