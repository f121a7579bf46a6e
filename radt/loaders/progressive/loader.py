"""ProgressiveLoader: small images and large batches first."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler, default_collate

from radt.errors import LoaderError, described
from radt.loaders.paced import PacedMetrics
from radt.loaders.progressive.check import SizeCheck, check_sizes
from radt.loaders.progressive.progress import Progress
from radt.loaders.progressive.schedule import PlannedBatch, Schedule, Select, Strategy
from radt.loaders.protocol import Loader, chosen, length_of

#: Index of a sample, and its edge in pixels. The size is passed along because workers prefetch: a
#: size stored per epoch would be stale.
_IndexAndSize = tuple[int, int]


class ProgressiveLoader(Loader[Any]):
    """Train on small images first; this changes training. Each sample grows from epoch to epoch.

    A batch has the same number of pixels at every size: ``batch_size`` · (``size`` / its size)²
    samples. Use `BatchScaledLR` so that the learning rate follows. The model must accept every size
    without new parameters, as convolutional networks with global pooling do; `check` tests it.
    Validate with a separate loader at full size.

    ``dataset[index]`` returns a raw sample, for example a path and a label; ``transform(sample,
    size)`` makes the training sample from it. Both run in the workers, so that small images are
    also cheap to load (`radt.loaders.images.open_at`, `radt.loaders.progressive.copies`). A resumed
    epoch has the same samples at the same sizes; random numbers drawn by ``transform`` are the
    workers'.

    With several ranks, each gets its part of the same batches, at the same size; parts differ by at
    most one sample.

    In a run, ``loader.image_size`` and ``loader.batch_size`` are recorded, at most once a second.

    Source: T. Robroek, *Resourceful Learning*, chapter 6.

    Args:
        dataset: Has ``len()`` and returns samples by index.
        transform: Function of a sample and an edge in pixels.
        batch_size: Samples in a batch at full size, of each rank.
        size: Edge of the largest images in pixels, with which training ends.
        min_size: Edge of the smallest images, with which it begins.
        step: Pixels between two sizes.
        strategy: ``"mixed"``: an epoch has each sample once, at its own size. ``"exhaustive"``: an
            epoch has only the samples of the smallest size that has any, and is shorter.
        upgrade_rate: Share of all samples that moves up one size after each epoch: 0.25 reaches
            320 from 128 in steps of 32 after 24 epochs.
        select: ``"random"``, or ``"loss"``: samples with the smallest loss first (`report`).
        seed: Seed of all random choices.
        rank: Number of this process among those that train together, from 0.
        world_size: Number of these processes.
        num_workers: Processes that load; they live until `close`.
        collate_fn: Makes a batch from a list of transformed samples.
        **options: Further arguments of `torch.utils.data.DataLoader`, such as ``pin_memory``.

    Raises:
        LoaderError: The numbers are inconsistent.
        UsageError: A strategy or selection is unknown.
    """

    def __init__(
        self,
        dataset: Any,
        transform: Callable[[Any, int], Any],
        *,
        batch_size: int,
        size: int,
        min_size: int,
        step: int = 32,
        strategy: str = "mixed",
        upgrade_rate: float = 0.25,
        select: str = "random",
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] = default_collate,
        **options: Any,
    ) -> None:
        self.schedule = Schedule(
            *(size, min_size, step, batch_size, upgrade_rate),
            strategy=chosen(Strategy, "strategy", strategy),
            select=chosen(Select, "select", select),
            seed=seed,
            world_size=world_size,
        )
        self._samples = length_of(dataset, type(self))
        self._progress = Progress(self.schedule, self._samples)
        if not 0 <= rank < world_size:
            raise LoaderError(f"expected a rank of 0 to {world_size - 1}, got {rank}")
        if 0 < self._samples < world_size:
            raise LoaderError(f"{self._samples} samples are too few for {world_size} ranks")
        self._rank = rank
        self._sized, self._collate = _Samples(dataset, transform), collate_fn
        self._sampler = _BatchSampler(rank, world_size)
        self._loader: DataLoader[Any] | None = DataLoader(
            self._sized,
            batch_sampler=self._sampler,
            num_workers=num_workers,
            collate_fn=collate_fn,
            **{
                "persistent_workers": num_workers > 0,
                # Source of the workers' seeds, so that training's random numbers are unaffected.
                "generator": torch.Generator().manual_seed(seed),
                **options,
            },
        )
        self._series = PacedMetrics("loader")
        self._epoch, self._given, self._begun = 0, 0, False
        self._batches: Iterator[Any] | None = None
        self._loop = 0
        self._last: PlannedBatch | None = None

    # Epochs and batches --------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Any]:
        if self._loader is None:
            raise LoaderError("the loader is closed", "Use it within its `with` block")
        if self._begun:  # the previous loop was abandoned
            self.set_epoch(self._epoch + 1)
        self._begun = True
        self._loop = loop = self._loop + 1
        rest = self._sampler.batches = self._progress.plan(self._epoch)[self._given :]
        self._batches = iter(self._loader)  # not kept here, so that `close` ends the workers
        for batch in rest:
            if self._batches is None or self._loop != loop:
                raise LoaderError(
                    "the loop over this loader cannot go on: the loader was closed, or another "
                    "loop began",
                    "Use a second loader for loops side by side",
                )
            loaded = next(self._batches)
            self._given, self._last = self._given + 1, batch
            samples = len(batch.part(self._rank, self.schedule.world_size))
            self._series.record(image_size=batch.size, batch_size=samples)
            yield loaded
        self._batches = None
        self.set_epoch(self._epoch + 1)

    def __len__(self) -> int:
        return len(self._progress.plan(self._epoch))

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next loop, from 0. A loaded state's epoch keeps its position.

        Raises:
            LoaderError: With ``select="loss"``, samples have already moved up in a later epoch.
        """
        if not self._begun and self._given and epoch == self._epoch:
            return
        self._progress.check(epoch)
        self._epoch, self._given, self._begun = epoch, 0, False

    def close(self) -> None:
        """End the workers. Harmless if repeated."""
        self._batches = self._loader = None

    # Sizes ---------------------------------------------------------------------------------------

    def sizes(self) -> np.ndarray:
        """Return each sample's edge in pixels in the current epoch, by index."""
        steps = self._progress.steps(self._epoch).astype(np.int64)
        return self.schedule.min_size + steps * self.schedule.step

    def report(self, losses: torch.Tensor | Sequence[float]) -> None:
        """Report the loss of each sample of the last batch, for ``select="loss"``.

        Args:
            losses: In the order of the batch: a loss with ``reduction="none"``.

        Raises:
            LoaderError: The loader does not choose by loss, there was no batch, or it has another
                number of samples.
        """
        if self._last is None:
            raise LoaderError("there was no batch yet to report losses of")
        values = torch.as_tensor(losses).detach().reshape(-1).float().cpu().numpy()
        self._progress.report(self._last.indices, values)

    def check(
        self,
        model: torch.nn.Module,
        loss: Callable[[torch.nn.Module, Any], torch.Tensor] | None = None,
    ) -> list[SizeCheck]:
        """Run a copy of the model forward and backward at every size, before training.

        On a CPU with two samples; on a GPU with a full batch of each size, made from these two, to
        measure its memory. The model, its buffers and its gradients are not changed.

        Args:
            model: On the device where it will be trained.
            loss: Function of the model and a batch on its device; if None, the sum of the model's
                output for the batch's first tensor.

        Returns:
            One result for each size, the smallest first.

        Raises:
            LoaderError: The model cannot take a size, or gets new parameters from it.
        """
        samples = [0, min(1, self._samples - 1)]
        batches = (
            (size, self._collate([self._sized[index, size] for index in samples]))
            for size in self.schedule.sizes
        )
        return check_sizes(model, batches, self.schedule.batch_at, loss)

    # State ---------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the position as JSON values; with ``select="loss"`` also each sample's size."""
        position = {"epoch": self._epoch, "given": self._given, "options": self._options()}
        return position | self._progress.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue after the last batch that the loader with this state returned.

        Raises:
            LoaderError: The state belongs to a loader with other data or options.
        """
        mine, other = self._options(), state.get("options")
        if not isinstance(other, dict):
            raise LoaderError("expected the state of a ProgressiveLoader, got something else")
        differing = [name for name in mine if other.get(name) != mine[name]]
        if differing:
            values = ", ".join(f"{name}={other.get(name)!r}" for name in differing)
            raise LoaderError(
                f"the state is of a loader with {values}", "Make the loader with the same options"
            )
        self._progress.load_state_dict(state)
        self._epoch, self._given, self._begun = int(state["epoch"]), int(state["given"]), False
        self._last = None

    def _options(self) -> dict[str, Any]:
        """Return the options that determine the plan of an epoch."""
        options = dataclasses.asdict(self.schedule) | {"samples": self._samples}
        # Plain text instead of members, as `torch.load` refuses other classes.
        return {name: getattr(value, "value", value) for name, value in options.items()}


class _BatchSampler(Sampler[list[_IndexAndSize]]):
    """Yields one rank's part of the planned batches as lists of (index, size).

    Args:
        rank: Number of the rank.
        world_size: Number of ranks.
    """

    def __init__(self, rank: int, world_size: int) -> None:
        self._rank, self._world_size = rank, world_size
        #: Batches of the next loop.
        self.batches: Sequence[PlannedBatch] = ()

    def __iter__(self) -> Iterator[list[_IndexAndSize]]:
        for batch in self.batches:
            part = batch.part(self._rank, self._world_size).tolist()
            yield [(index, batch.size) for index in part]

    def __len__(self) -> int:
        return len(self.batches)


class _Samples(Dataset[Any]):
    """Samples of a dataset, transformed for a size, as called by workers.

    Args:
        dataset: Returns a raw sample for an index.
        transform: Makes the training sample at a size.
    """

    def __init__(self, dataset: Any, transform: Callable[[Any, int], Any]) -> None:
        self._dataset, self._transform = dataset, transform

    def __getitem__(self, key: _IndexAndSize) -> Any:
        """Return the transformed sample.

        Raises:
            LoaderError: The dataset or the transform raised an exception.
        """
        index, size = key
        try:
            return self._transform(self._dataset[index], size)
        except Exception as error:
            raise LoaderError(
                f"sample {index} cannot be loaded at {size} pixels: {described(error)}"
            ) from error
