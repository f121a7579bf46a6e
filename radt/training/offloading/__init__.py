"""Training with a part of the parameters in memory: `offload` (Atom).

`tracing` reads the graph of a model, `graph` cuts it into blocks, `measuring` measures these,
`partition` finds the segments, and `planning` chooses how many micro-batches go through each.

`executor` makes a step: `passes` computes segments, forward and backward, while threads load and
update others. `swapping` moves parameters and optimiser states (`optimizers`) between the model and
a store (`stores`): a file, or pinned memory. Gradients are added in the order of the plain loop,
and `draws` gives each micro-batch its random numbers, so that results have the same bits. `forward`
serves calls of the model outside of steps.
"""

from radt.training.offloading.offloaded import OffloadedJob, OffloadedStep, offload
from radt.training.offloading.planning import Plan

__all__ = ["OffloadedJob", "OffloadedStep", "Plan", "offload"]
