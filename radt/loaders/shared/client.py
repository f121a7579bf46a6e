"""`SharedLoader`: the loader of a training process that shares it with others."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from radt.errors import LoaderError
from radt.loaders.paced import PacedMetrics
from radt.loaders.protocol import Loader, chosen
from radt.loaders.shared.device import asked_for
from radt.loaders.shared.factory import Factory
from radt.loaders.shared.membership import Ask, Join
from radt.loaders.shared.rebatch import Pieces
from radt.loaders.shared.session import Begin, End, Given, Moved, Session
from radt.loaders.shared.starting import DEFAULT_LINGER_S, ServerOptions
from radt.run.notices import warn_once

_DEFAULT_WINDOW_BYTES = 256_000_000


@dataclass(slots=True)
class _Position:
    """A consumer's position: the next sample is row ``row`` of batch ``batch`` of the epoch.

    ``random`` is the state of the server's random numbers at the epoch's start; None if this
    process has not received it. ``named`` says that the script chose the epoch.
    """

    epoch: int = 0
    batch: int = 0
    row: int = 0
    random: dict[str, Any] | None = None
    named: bool = False


class SharedLoader(Loader[Any]):
    """Load data once for all training processes on this machine that use the same name.

    ``with SharedLoader(make_loader, name="imagenet") as loader:`` in each script takes the place of
    its own ``DataLoader``. The first consumer starts a server, a process that calls ``make_loader``
    and loads; all get the same batches in the same order, as views of memory that they share.
    Losses are those of the plain loader. The server ends with its last consumer.

    *Epochs.* An epoch begins when all connected consumers have asked for it, and the fastest is at
    most ``buffer`` batches ahead of the slowest. A consumer that comes later joins at the next
    epoch unless ``join`` says otherwise. Leaving a loop early gives up the rest of the epoch. If
    consumers differ in the number of the next epoch (`set_epoch`, `load_state_dict`, or one came
    later), the server's number applies: the one after the last epoch. All follow it, `epoch`
    returns it, and a script that had chosen another is warned. A loader or sampler with
    ``set_epoch`` gets the number in the server.

    *Resuming.* `state_dict` has the position and the state of the server's random numbers at the
    epoch's start. A new server repeats that epoch and skips what was returned, at the cost of
    loading the batches before the position. Consumers also continue like this if their server is
    asked to end (SIGTERM), as radt does when the run whose process started it is over. A service
    row (``-m radt.loaders.serve``) avoids this. A new server waits 10 s for them. For a consumer
    that comes later, it loads the rest of its epoch after the others have finished theirs.

    *Batches* of the loader have any structure: dicts and other mappings, lists, tuples, named
    tuples, dataclasses. Tensors and NumPy arrays are shared, other values are copied by pickle. A
    batch is unchanged while any part of it is in use, and its slot is reused after that; a script
    that keeps more than ``buffer`` batches gets copies.

    *On a GPU* (``device``; not tested on one yet) the server copies each batch to the GPU once, and
    all consumers that name this GPU read it there. Further GPUs get it from the first one if they
    can read its memory. Use a batch on the stream that is current when it is returned. If the
    server cannot use the GPU, or the memory cannot be shared (another MIG device), each process
    copies its batches itself, with one warning. The loader may return tensors on a GPU, such as the
    features of a frozen encoder.

    Source: TensorSocket, chapter 5 of Robroek's thesis.

    Args:
        make_loader: A function at the top level of a file or module that returns a ``DataLoader``
            or another iterable of batches. It is called in the server, and should set all relevant
            seeds.
        name: Name of the loader, the same in all processes that share it. Rows of another workload,
            and other users, do not share it.
        arguments: Arguments of ``make_loader`` by name, as JSON values.
        batch_size: Samples in a batch of this consumer; the loader's if None. Batches that lie
            within one of the loader's are views, others are copies.
        buffer: Number of batches that a consumer may be ahead of another. The server keeps one
            more.
        join: Where to join an epoch in progress: ``"epoch"``, at the next one; ``"window"``, at the
            beginning of this one if its batches are still kept, else at the next; ``"now"``, at its
            next batch (`partial` is then True).
        window_bytes: Memory for an epoch's first batches, kept for consumers that come late. It
            applies if the consumer that starts the server joins by window.
        transform: Called with each batch in this process, for its own augmentation.
        device: ``"cuda"`` or ``"cuda:1"``: tensors are on this GPU. See above.
        mutable: Whether this script may write into batches. Its writes are private. With False it
            must not write, and saves 0.1 ms for 38 MB; on a GPU, a copy of the batch.
        linger_s: How long the server stays without consumers.
        stall_warning_s: Report the cause if there is no batch for this long.
        stall_timeout_s: Evict a consumer for which others have waited this long, and give up on a
            loader that returns nothing for this long. If None, wait forever.
        restart: If the server is killed, continue with a new one.

    ``buffer``, ``window_bytes``, ``linger_s`` and ``stall_timeout_s`` belong to the server: the
    consumer that starts it determines them.

    Raises:
        LoaderError: Another process cannot find ``make_loader``, or the name is used with another
            factory, other arguments or an earlier version of the file.
        UsageError: `join` is none of these.
    """

    def __init__(
        self,
        make_loader: Callable[..., Iterable[Any]],
        *,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        batch_size: int | None = None,
        buffer: int = 2,
        join: Join | str = Join.EPOCH,
        window_bytes: int = _DEFAULT_WINDOW_BYTES,
        transform: Callable[[Any], Any] | None = None,
        device: str | torch.device | None = None,
        mutable: bool = True,
        linger_s: float = DEFAULT_LINGER_S,
        stall_warning_s: float = 30.0,
        stall_timeout_s: float | None = None,
        restart: bool = False,
    ) -> None:
        if buffer < 1 or (batch_size is not None and batch_size < 1):
            raise LoaderError(
                f"expected a buffer and batch_size of 1 or more, found {buffer} and {batch_size}",
                "Give larger ones",
            )
        self._join = chosen(Join, "join", join)
        self.name, self._batch_size, self._transform = name, batch_size, transform
        self._factory = Factory.of(make_loader, arguments)
        window_bytes = window_bytes if self._join is Join.WINDOW else 0
        self._options = ServerOptions(name, buffer, window_bytes, linger_s, stall_timeout_s)
        self._device = asked_for(device)
        self._mutable, self._stall_warning_s = mutable, stall_warning_s
        self._restart = restart
        self._position = _Position()
        self._partial = self._under_way = self._begun = self._cut_off = False
        self._pieces = Pieces(batch_size)
        self._loop = 0
        self._failure: LoaderError | None = None
        self._series = PacedMetrics("loader")
        self._process = os.getpid()
        self._session: Session | None = self._new_session()

    def _new_session(self, expected: int = 0) -> Session:
        return Session(
            self._factory,
            self._options,
            device=self._device,
            mutable=self._mutable,
            stall_warning_s=self._stall_warning_s,
            expected=expected,
        )

    @property
    def epoch(self) -> int:
        """The current epoch, or the next one between epochs."""
        return self._position.epoch

    @property
    def partial(self) -> bool:
        """True if this process joined the epoch in progress and does not get all of it."""
        return self._partial

    def __len__(self) -> int:
        """Return the number of batches in an epoch, in this consumer's size.

        Raises:
            TypeError: The loader does not know, like ``len`` of a loader of an `IterableDataset`.
            LoaderError: The loader cannot be created.
        """
        session = self._checked()
        while True:
            try:
                session.wait_until_ready()
                break
            except Moved as moved:
                session = self._moved(moved)
            except LoaderError as error:
                self._failure = error
                raise
        count = session.batches
        if self._batch_size is not None:
            count = None if session.rows is None else -(-session.rows // self._batch_size)
        if count is None:
            raise TypeError(f"the loader of {self._factory} has no len()")
        return count

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next loop, from 0. A loaded state's epoch keeps its position.

        See above for the effect on other consumers.
        """
        if not self._under_way and epoch == self._position.epoch:
            self._position.named = True
            return
        self._leave()
        self._position = _Position(epoch, named=True)

    def state_dict(self) -> dict[str, Any]:
        """Return the position as JSON values of about 20 kB."""
        position = self._position
        return {
            "epoch": position.epoch,
            "batch": position.batch,
            "row": position.row,
            "random": position.random,
            "factory": self._factory.function,
            "arguments": dict(self._factory.arguments),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue after the last batch of that state.

        Raises:
            LoaderError: It is not a state of a shared loader with this factory and arguments.
        """
        expected = {"factory": self._factory.function, "arguments": dict(self._factory.arguments)}
        found = {key: state.get(key) for key in expected}
        if found != expected:
            raise LoaderError(
                f"the state is not of this shared loader: expected {expected}, found {found}",
                "Load the state that a loader with the same factory and arguments returned",
            )
        self._leave()
        self._position = _Position(
            state["epoch"], state["batch"], state["row"], state["random"], named=True
        )

    def __iter__(self) -> Iterator[Any]:
        """Return the batches of an epoch.

        Raises:
            LoaderError: The loader failed in the server (with its traceback); the server was
                killed; this process was evicted.
        """
        session = self._checked()
        self._leave()
        self._loop += 1
        self._under_way, self._begun, self._cut_off = True, False, False
        self._pieces = Pieces(self._batch_size)
        self._ask(session)
        return _Epoch(self, self._loop)

    def close(self) -> None:
        """Leave the server. Batches in use stay unchanged.

        Waits a moment for a server to end that this process started and no other process uses.
        """
        session, self._session = self._session, None
        self._under_way = False
        if session is not None and os.getpid() == self._process:
            session.close()
            session.wait_for_own_server()

    # An epoch -------------------------------------------------------------------------------------

    def next_of(self, loop: int) -> Any:
        """Return the next batch of a loop, for its iterator.

        Raises:
            StopIteration: The epoch is over, or another loop has begun.
            LoaderError: See `__iter__`.
        """
        if loop != self._loop or not self._under_way:
            raise StopIteration
        try:
            batch = self._next_batch()
        except LoaderError as error:
            self._failure = error
            raise
        return batch if self._transform is None else self._transform(batch)

    def leave(self, loop: int) -> None:
        """Give up the rest of a loop whose iterator is gone."""
        if loop == self._loop and os.getpid() == self._process:
            self._leave()

    def _next_batch(self) -> Any:
        while not self._pieces.complete:
            match self._next_event():
                case Begin() as begin:
                    self._begin(begin)
                case End() as end:
                    self._ended = end
                    self._pieces.finish()
                case Given() as given:
                    self._pieces.add(given.number, given.batch)
                    self._series.record(slots_in_use=given.in_use, drift=given.lag)
        if self._pieces.empty:
            self._under_way = False
            self._position = _Position(self._ended.epoch + 1, random=self._ended.random)
            raise StopIteration
        batch = self._pieces.take()
        self._position.batch, self._position.row = self._pieces.position
        return batch

    def _begin(self, begin: Begin) -> None:
        """Begin an epoch, or begin it again with a new server."""
        before, self._begun, self._cut_off = self._position, True, False
        follows = begin.epoch == before.epoch
        if not follows and (before.named or before.batch or before.row):
            warn_once(
                f"the consumers of the shared loader {self.name!r} differ: this script was to get "
                f"epoch {before.epoch} from batch {before.batch} on, and gets epoch {begin.epoch}"
            )
        row = before.row if follows and begin.first == before.batch else 0
        self._partial = begin.first > (before.batch if follows else 0)
        self._position = _Position(begin.epoch, begin.first, row, begin.random)
        self._pieces = Pieces(self._batch_size, (begin.first, row))

    def _next_event(self) -> Begin | End | Given:
        session = self._checked()
        while True:
            try:
                event = session.next()
            except Moved as moved:
                session = self._moved(moved)
                continue
            if isinstance(event, Begin) and event.loop == self._loop:
                return event
            if not self._begun or isinstance(event, Begin):
                continue  # of an abandoned epoch: the server has released it
            return event if isinstance(event, End) else session.given(event)

    def _ask(self, session: Session) -> None:
        position = self._position
        session.ask(
            Ask(
                position.epoch,
                position.named,
                position.batch,
                position.random,
                self._join,
                self._loop,
                self._cut_off,
            )
        )

    def _moved(self, moved: Moved) -> Session:
        """Continue with another server.

        Raises:
            LoaderError: The server was killed, and `restart` is off.
        """
        assert self._session is not None
        self._session.close()
        if not moved.asked_to_end and not self._restart:
            position = self._position
            raise LoaderError(
                f"the server of the shared loader {self.name!r} (process "
                f"{self._session.server_pid}) was killed at epoch {position.epoch} after "
                f"{position.batch} batches",
                "See its output for why. With restart=True, training goes on with a new server",
            )
        session = self._session = self._new_session(moved.members or self._session.members)
        self._cut_off, self._begun = self._cut_off or self._begun, False
        if self._under_way:
            self._ask(session)
        return session

    def _leave(self) -> None:
        """Give up the rest of the current epoch. The next loop is the one after it."""
        if not self._under_way:
            return
        self._under_way = False
        if self._session is not None:
            self._session.leave()
        self._pieces = Pieces(self._batch_size)
        if self._begun:
            self._position = _Position(self._position.epoch + 1)

    def _checked(self) -> Session:
        """Return the session.

        Raises:
            LoaderError: There is no usable session.
        """
        if self._failure is not None:
            raise self._failure
        if os.getpid() != self._process:
            raise LoaderError(
                f"the shared loader {self.name!r} was opened before this process was forked",
                "Open a SharedLoader in each process",
            )
        if self._session is None:
            raise LoaderError(f"the shared loader {self.name!r} is closed", "Open another one")
        return self._session


class _Epoch(Iterator[Any]):
    """One loop. It keeps no batch, so that a slot is free as soon as the script is done with it."""

    def __init__(self, loader: SharedLoader, loop: int) -> None:
        self._loader, self._loop = loader, loop

    def __next__(self) -> Any:
        return self._loader.next_of(self._loop)

    def __del__(self) -> None:
        self._loader.leave(self._loop)
