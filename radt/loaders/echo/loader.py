"""The loader that uses each decoded sample several times."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from multiprocessing.context import BaseContext
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, default_collate
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from radt.errors import LoaderError, UsageError, described
from radt.loaders.echo.buffer import SampleBuffer, Turn
from radt.loaders.echo.fills import Epoch, Sizes
from radt.loaders.echo.worker import Augment, BatchFailure, Collate, Task, WorkerBatches
from radt.loaders.paced import PacedMetrics
from radt.loaders.protocol import Loader, length_of
from radt.run.notices import say
from radt.units import size

#: Arguments of ``DataLoader`` that `EchoLoader` sets itself.
_OWN = frozenset({"batch_size", "shuffle", "sampler", "batch_sampler", "persistent_workers"})


class EchoLoader(Loader[Any]):
    """Use each decoded sample several times while it is in memory; this changes training.

    Decoding is often the largest part of loading. Data that are decoded once and used r times need
    1/r of it. ``dataset[i]`` decodes; ``augment`` does what differs from use to use. An epoch is
    one pass over the dataset: while echoing, it has ``repeats`` times as many batches as without.
    When the validation accuracy no longer grows (`Plateau`), call `finetune`: from the next epoch
    on, every use is fresh. PerFect (data echoing with fine-tuning); Choi et al., "Faster Neural
    Network Training with Data Echoing", 2019.

    Two fills of the buffer are in memory, one in use and one being decoded; ``buffer_bytes`` is
    their size.

    Args:
        dataset: Has a length, and returns decoded samples: tensors, arrays and any other values, in
            any structure.
        augment: Called as ``augment(sample, generator)`` for each use, in a worker. The generator
            depends only on the seed, the epoch, the sample and the use. None to reuse samples
            unchanged (immediate reuse), which needs more fine-tuning.
        batch_size: Samples in a batch.
        repeats: Uses of each sample in an epoch. With 1, batches are those of a ``DataLoader``.
        buffer: Fresh samples in a fill, whose uses are shuffled together. The larger, the closer to
            training on fresh data.
        num_workers: Processes that decode and augment; 0 for the script's own.
        seed: Seed of the order and the augmentations.
        drop_last: Leave out an incomplete last batch.
        max_bytes: Size of the largest sample, if sizes differ. Without it, all have the size of the
            first one.
        collate_fn: Makes a batch from a list of samples.
        options: Further arguments of ``torch.utils.data.DataLoader``, such as ``pin_memory``.

    Attributes:
        decoded: Number of samples decoded for the batches returned so far. Samples decoded again
            after `load_state_dict` count once.
        echoed: Number of uses of samples that had been used before.
        echoing: Whether the next epoch reuses samples.

    Raises:
        UsageError: An argument is invalid.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        augment: Augment | None,
        *,
        batch_size: int,
        repeats: int,
        buffer: int,
        num_workers: int = 0,
        seed: int = 0,
        drop_last: bool = False,
        max_bytes: int | None = None,
        collate_fn: Collate = default_collate,
        **options: Any,
    ) -> None:
        samples = length_of(dataset, type(self))
        for name, value, least in (
            ("batch_size", batch_size, 1),
            ("repeats", repeats, 1),
            ("buffer", buffer, 1),
            ("seed", seed, 0),
            ("max_bytes", max_bytes, 1),
        ):
            if value is not None and value < least:
                raise UsageError(f"Expected {name} of at least {least}, got {value}")
        if own := sorted(_OWN & options.keys()):
            raise UsageError(
                f"EchoLoader sets {', '.join(own)} of its DataLoader itself", "Leave it out"
            )
        self.repeats = repeats
        self.decoded = self.echoed = 0
        self.echoing = repeats > 1
        self._sizes = Sizes(samples, batch_size, min(buffer, max(samples, 1)), seed, drop_last)
        self._dataset, self._augment, self._collate = dataset, augment, collate_fn
        self._num_workers, self._max_bytes, self._options = num_workers, max_bytes, options
        self._series = PacedMetrics("loader")
        self._epoch = Epoch(number=0, repeats=repeats, first_batch=0)
        #: Number of batches of this epoch returned so far; whether a loop over it has begun.
        self._given, self._begun = 0, False
        #: Number of the last loop. Earlier ones have ended.
        self._loop = 0
        self._buffer: SampleBuffer | None = None
        self._loader: DataLoader[Any] | None = None
        #: Tasks of the workers for the current loop.
        self._tasks: list[Task] = []
        self._batches: Iterator[Any] | None = None
        self._closed = self._shown = False

    @property
    def buffer_bytes(self) -> int:
        """Memory for decoded samples, of all processes together.

        0 until the first sample is decoded, and from the first batch of fine-tuning on.
        """
        return 0 if self._buffer is None else self._buffer.total_bytes

    def finetune(self) -> None:
        """Use only fresh samples, from the next epoch on.

        The learning rate usually has to be raised again for it: see
        docs/techniques/data-echoing.md.
        """
        self.echoing = False
        if not self._begun and not self._given:
            self.set_epoch(self._epoch.number)

    def __len__(self) -> int:
        return self._sizes.batches(self._epoch.repeats)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next loop, from 0. A loaded state's epoch keeps its position."""
        if not self._begun and self._given and epoch == self._epoch.number:
            return
        repeats = self.repeats if self.echoing else 1
        self._epoch = Epoch(epoch, repeats, first_batch=0)
        self._given, self._begun = 0, False

    def state_dict(self) -> dict[str, Any]:
        return {
            **asdict(self._sizes),
            "repeats": self.repeats,
            "echoing": self.echoing,
            "epoch": self._epoch.number,
            "epoch_repeats": self._epoch.repeats,
            "batches": self._given,
            "decoded": self.decoded,
            "echoed": self.echoed,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        own = self.state_dict()
        if missing := [name for name in own if name not in state]:
            raise LoaderError(
                f"Expected the state of an EchoLoader, but it has no {', '.join(missing)}",
                "Pass what EchoLoader.state_dict() returned",
            )
        for name in (*asdict(self._sizes), "repeats"):
            if state[name] != own[name]:
                raise LoaderError(
                    f"The state is of a loader with {name}={state[name]}, not {own[name]}",
                    "Make the loader with the same dataset and arguments",
                )
        self._stop_loop()
        self.echoing = state["echoing"]
        self._series.flush_sums()
        self.decoded, self.echoed = state["decoded"], state["echoed"]
        self._epoch = Epoch(state["epoch"], state["epoch_repeats"], state["batches"])
        self._given, self._begun = state["batches"], False

    def __iter__(self) -> Iterator[Any]:
        if self._closed:
            raise LoaderError("The loader is closed", "Iterate inside its with block")
        if self._begun:  # an abandoned loop
            self._series.flush_sums()
            self.set_epoch(self._epoch.number + 1)
        self._begun = True
        self._loop += 1
        return self._loop_over(self._epoch, self._loop)

    def _loop_over(self, epoch: Epoch, loop: int) -> Iterator[Any]:
        numbers = range(epoch.first_batch, self._sizes.batches(epoch.repeats))
        for number in numbers:
            if self._loop != loop:
                raise LoaderError(
                    "The loop has ended: another one over the same loader began, or it was closed",
                    "Make a loader for each loop that runs beside another",
                )
            if number == epoch.first_batch:
                self._tasks[:] = [Task(epoch, Turn(loop, each)) for each in numbers]
                self._batches = None
            batch, decoded, echoed = self._next()
            if number == epoch.first_batch and epoch.repeats == 1 and self._buffer is not None:
                self._buffer.empty()  # the first batch comes after all of the last loop's work
            self._given = number + 1
            self.decoded += decoded
            self.echoed += echoed
            self._show()
            self._series.add(decoded=decoded, echoed=echoed)
            yield batch
        if self._loop == loop:
            self._series.flush_sums()
            self.set_epoch(epoch.number + 1)

    def _next(self) -> tuple[Any, int, int]:
        try:
            if self._batches is None:
                self._batches = iter(self._started())
            made = next(self._batches)
        except (RuntimeError, OSError, EOFError) as error:
            # A worker was killed, even before its last batch was read, or a timeout was set.
            try:
                self._stop_workers()
            except RuntimeError:  # from torch's SIGCHLD handler, once, wherever we are
                self._stop_workers()
            raise LoaderError(
                f"The next batch did not come: {described(error)}",
                "The kernel's log says whether memory was short; num_workers=0 shows other causes",
            ) from error
        if isinstance(made, BatchFailure):
            self._stop_loop()
            raise made.error()
        batch, decoded, echoed = made  # a list, if batches are pinned
        return batch, decoded, echoed

    def _started(self) -> DataLoader[Any]:
        if self._loader is None:
            context = self._options.get("multiprocessing_context")
            if not isinstance(context, BaseContext):
                context = multiprocessing.get_context(context)
            self._buffer = SampleBuffer(self._sizes.slots, self._max_bytes, context)
            work = (self._dataset, self._augment, self._collate, self._sizes, self._buffer)
            self._loader = DataLoader(
                WorkerBatches(*work),
                batch_size=None,
                sampler=self._tasks,
                collate_fn=_unchanged,
                num_workers=self._num_workers,
                persistent_workers=self._num_workers > 0,
                # Otherwise the script's random numbers would depend on the loader.
                generator=torch.Generator().manual_seed(self._sizes.seed),
                **self._options,
            )
        return self._loader

    def _show(self) -> None:
        """Report once the size of the buffer, when it is known."""
        if self._shown or not self.buffer_bytes:
            return
        self._shown = True
        slots, slot_bytes = self._sizes.slots, self.buffer_bytes // self._sizes.slots
        say(
            f"EchoLoader: the buffer takes {size(self.buffer_bytes)} of memory, {slots:,} samples "
            f"of {slot_bytes:,} bytes"
        )
        self._series.flush(buffer_bytes=self.buffer_bytes)

    def _stop_loop(self) -> None:
        """End the current loop, without waiting for its batches."""
        if self._buffer is not None:
            self._buffer.give_up(Turn(self._loop, -1))
        self._loop += 1

    def _stop_workers(self) -> None:
        self._stop_loop()
        # Workers end with their iterator, but an error that the script holds may also refer to it.
        if isinstance(self._batches, _MultiProcessingDataLoaderIter):
            # It also raises if it learns only now that a worker was killed, and ends the others.
            with suppress(RuntimeError):
                self._batches._shutdown_workers()  # noqa: SLF001
        self._batches = self._loader = None
        if self._buffer is not None:
            self._buffer.close()
            self._buffer = None

    def close(self) -> None:
        """End the workers and free the buffer. Harmless if repeated."""
        self._closed = True
        self._series.flush_sums()
        self._stop_workers()


def _unchanged(made: Any) -> Any:
    return made
