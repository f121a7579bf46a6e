"""What a model is trained for: how a batch becomes inputs, what is lost, and what is right."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional

#: Mean and deviation of ImageNet's colours, of values from 0 to 1, as everybody takes them.
_MEAN, _DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_BRIGHTEST = 255.0


class Task(Protocol):
    """Classes of images, or clicks."""

    def inputs(self, batch: Any, *, train: bool) -> tuple[tuple[Tensor, ...], Tensor]:
        """What the model gets of a batch, and what it is to say, on the device."""

    def loss(self, scores: Tensor, target: Tensor) -> Tensor:
        """How wrong the scores are: one number."""

    def right(self, scores: Tensor, target: Tensor) -> Tensor:
        """How many samples are right: one number."""


class Classes:
    """Images, each of one class; in training every second one is mirrored."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        shape = (1, 3, 1, 1)
        self._mean = torch.tensor(_MEAN, device=device).view(shape) * _BRIGHTEST
        self._deviation = torch.tensor(_DEVIATION, device=device).view(shape) * _BRIGHTEST

    def inputs(self, batch: Any, *, train: bool) -> tuple[tuple[Tensor, ...], Tensor]:
        # Bytes travel, as in timm: floats would be four times as many.
        images, labels = (part.to(self._device, non_blocking=True) for part in batch)
        normal = (images.float() - self._mean) / self._deviation
        if train:
            mirrored = torch.rand(len(normal), 1, 1, 1, device=self._device) < 0.5
            normal = torch.where(mirrored, normal.flip(-1), normal)
        return (normal,), labels

    def loss(self, scores: Tensor, target: Tensor) -> Tensor:
        return functional.cross_entropy(scores, target)

    def right(self, scores: Tensor, target: Tensor) -> Tensor:
        return (scores.argmax(1) == target).sum()


class Clicks:
    """Pages, each clicked or not."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def inputs(self, batch: Any, *, train: bool) -> tuple[tuple[Tensor, ...], Tensor]:  # noqa: ARG002
        dense, categories, clicked = (part.to(self._device, non_blocking=True) for part in batch)
        return (dense, categories), clicked

    def loss(self, scores: Tensor, target: Tensor) -> Tensor:
        return functional.binary_cross_entropy_with_logits(scores, target)

    def right(self, scores: Tensor, target: Tensor) -> Tensor:
        return ((scores > 0) == (target > 0.5)).sum()
