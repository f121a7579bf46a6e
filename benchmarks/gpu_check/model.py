"""The input of a check, and its answer."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Self

from radt.devices.gpus import Gpu, Gpus
from radt.devices.visible import VISIBLE_VARIABLE

if TYPE_CHECKING:
    import torch

#: cuBLAS gives the same bits in every run only with a workspace of a fixed size, which it reads
#: when CUDA is initialised (PyTorch's notes on reproducibility).
_CUBLAS_WORKSPACE = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}


class Answer(StrEnum):
    """The result of checking a claim."""

    YES = "yes"
    NO = "no"
    NOT_POSSIBLE = "not possible here"


class NotPossibleError(Exception):
    """The claim cannot be checked on this machine; the message says why."""


@dataclass(frozen=True)
class Result:
    """The answer of a check with its evidence, and Markdown that follows the table."""

    answer: Answer
    evidence: str
    section: str = ""

    @classmethod
    def of(cls, evidence: str, problems: Sequence[str] = (), section: str = "") -> Self:
        """Return yes with the evidence, or no with the problems before it."""
        answer = Answer.NO if problems else Answer.YES
        return cls(answer, "; ".join([*problems, evidence]), section)


@dataclass(frozen=True)
class Setting:
    """Where checks run: ``device`` is where PyTorch and the loads work, ``cuda`` or ``cpu``.

    ``gpu`` is NVML's index; loads take ``seconds`` each, with a reading every ``interval_s``.
    Checks may write files into ``folder``, a path.
    """

    device: str
    gpu: int
    seconds: float
    interval_s: float
    folder: str

    @property
    def has_cuda(self) -> bool:
        return self.device == "cuda"

    def the_gpu(self) -> Gpu:
        """Return the GPU, or raise NotPossibleError if it is absent or broken."""
        gpus = Gpus.read()
        if self.gpu >= len(gpus.every):
            raise NotPossibleError(gpus.reason or f"there is no GPU {self.gpu}")
        gpu = gpus.every[self.gpu]
        if gpu.problem:
            raise NotPossibleError(f"{gpu} does not answer: {gpu.problem}")
        return gpu

    def torch_device(self) -> torch.device:
        """Return PyTorch's device, with PyTorch set to give the same bits in every run.

        It is the only one that this process sees: CUDA may number GPUs in another order than NVML.
        """
        if self.has_cuda:
            os.environ.update(_CUBLAS_WORKSPACE | {VISIBLE_VARIABLE: self.the_gpu().uuid})
        import torch

        torch.use_deterministic_algorithms(True)
        return torch.device(self.device, *([0] if self.has_cuda else []))


@dataclass(frozen=True)
class Check:
    """A claim and the function that checks it, which gets a `Setting` and returns a `Result`.

    ``function`` is named, as in an entry point: only the process that runs it imports PyTorch.
    """

    name: str
    claim: str
    limit_s: float
    function: str
