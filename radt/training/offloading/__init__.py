"""Training with a part of the parameters in memory: `offload` (Atom)."""

from radt.training.offloading.offloaded import OffloadedJob, OffloadedStep, offload
from radt.training.offloading.planning import Plan, PlannedSegment

__all__ = ["OffloadedJob", "OffloadedStep", "Plan", "PlannedSegment", "offload"]
