"""Connections between the replicas of an `ElasticAverager`: shared counters, and sums."""

from __future__ import annotations

import contextlib
import ctypes
import re
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch.distributed import (  # type: ignore[attr-defined]
    DistStoreError,
    PrefixStore,
    ProcessGroupGloo,
    TCPStore,
)
from torch.distributed.distributed_c10d import AllreduceOptions, ReduceOp

from radt.peers import listening

#: Size of the pieces of a sum. Each piece must arrive within the timeout, whatever the model's
#: size.
_BUCKET_BYTES = 8 << 20
_PORT_SEPARATOR = "|"
_ERRORS_ONLY = 2
#: Source location that gloo puts before the cause of an error.
_GLOO_PLACE = re.compile(r"^\[\S+\.(cc|h):\d+\] ")
_GLOO_ADVICE = ". This is typically"


class Exchange:
    """One replica's connections to the others.

    Each replica has a store (`torch.distributed.TCPStore`, which has no authentication); all use
    that of the first replica in a round.

    Args:
        host: Address of this machine's interface by which peers reach this replica.
        timeout_s: Maximum silence of a peer within a sum.

    Attributes:
        address: Address of this replica's store.
        mesh: Name of the current connections for sums; empty if there are none.
        mesh_size: Number of replicas that they connect.
    """

    def __init__(self, host: str, timeout_s: float) -> None:
        self._host, self._timeout = host, timedelta(seconds=timeout_s)
        listener = listening(host)
        port: int = listener.getsockname()[1]
        self._own: Any = TCPStore(
            *(host, port),
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=listener.detach(),  # otherwise it listens on all interfaces
        )
        self.address = f"{host}{_PORT_SEPARATOR}{self._own.port}"
        self.mesh, self.mesh_size = "", 0
        self._gloo: Any = None
        self._store: Any = None
        self._store_address = ""

    def use_store(self, address: str) -> None:
        """Use the store at this address for counting from now on.

        Raises:
            RuntimeError: It cannot be reached.
        """
        if address == self._store_address and self._store is not None:
            return
        self._store = None
        host, _, port = address.rpartition(_PORT_SEPARATOR)
        with _quiet():
            self._store = TCPStore(
                host, int(port), is_master=False, wait_for_workers=False, timeout=self._timeout
            )
        self._store_address = address

    def count(self, key: str, number: int) -> int | None:
        """Add to a counter of the store and return its sum over all replicas.

        Return None if the store's replica is gone, in which case the count is obsolete, or if it
        was unreachable for a moment; the next `use_store` reconnects.
        """
        try:
            with _quiet():
                return int(self._connected().add(key, number))
        except RuntimeError:
            self._store = None  # a connection that failed once never works again
            return None

    def wait(self, keys: Sequence[str], timeout_s: float) -> bool:
        """Return True if each of these keys is counted within the timeout.

        Raises:
            RuntimeError: The store's replica is gone.
        """
        try:
            with _quiet():
                self._connected().wait(list(keys), timedelta(seconds=timeout_s))
        except DistStoreError:
            return False
        return True

    def forget(self, keys: Sequence[str]) -> None:
        """Delete obsolete keys if they are in this replica's store."""
        for key in keys:
            self._own.delete_key(key)

    def _connected(self) -> Any:
        if self._store is None:
            raise RuntimeError("the replicas' store is not connected")
        return self._store

    def connect(self, mesh: str, rank: int, replicas: int) -> None:
        """Connect to the other replicas of a round, all of which call this.

        Raises:
            RuntimeError: One of them is gone or silent.
        """
        self.disconnect()
        options: Any = ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # noqa: SLF001
        options._devices = [ProcessGroupGloo.create_device(hostname=self._host)]  # noqa: SLF001
        options._timeout = self._timeout  # noqa: SLF001
        with _quiet():
            self._gloo = ProcessGroupGloo(PrefixStore(mesh, self._store), rank, replicas, options)
        self.mesh, self.mesh_size = mesh, replicas

    def disconnect(self) -> None:
        """Close the connections for sums."""
        self._gloo, self.mesh, self.mesh_size = None, "", 0

    def sum(self, flat: Tensor) -> None:
        """Replace a flat CPU tensor by its sum over all replicas, bit-identical in each.

        Raises:
            RuntimeError: A replica is gone or silent; the tensor's content is undefined.
        """
        options: Any = AllreduceOptions()
        options.reduceOp = ReduceOp.SUM
        for bucket in torch.split(flat, max(1, _BUCKET_BYTES // flat.element_size())):
            self._gloo.allreduce([bucket], options).wait()

    def confirm(self) -> None:
        """Return once every replica has called this, so that all of them have the sums.

        Raises:
            RuntimeError: A replica is gone or silent.
        """
        self.sum(torch.zeros(1))

    def close(self) -> None:
        """Close all connections and this replica's store."""
        self.disconnect()
        self._store = self._own = None


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep PyTorch from printing a page of C++ frames when a peer is gone, an expected error.

    PyTorch reads its log level from the environment before any script runs, so the level is changed
    in memory.
    """
    try:
        level = ctypes.c_int.in_dll(ctypes.CDLL("libc10.so"), "FLAGS_caffe2_log_level")
    except (OSError, ValueError):  # another build of PyTorch
        yield
        return
    before, level.value = level.value, max(level.value, _ERRORS_ONLY)
    try:
        yield
    finally:
        level.value = before


def cause_of(error: Exception) -> str:
    """Return in one line why a peer cannot be reached."""
    line = str(error).partition("\n")[0]
    return _GLOO_PLACE.sub("", line).partition(_GLOO_ADVICE)[0] or type(error).__name__


def averaged(tensors: Sequence[Tensor], weight: float, exchange: Exchange | None) -> list[Tensor]:
    """Return the weighted mean of each tensor over all replicas, on the CPU, in its `sum_dtype`.

    Args:
        tensors: The same shapes and types in each replica. Integers are averaged and rounded.
        weight: This replica's weight; the weights of all replicas add up to 1. At 0 its values are
            ignored, even if they are not finite; at 1 the result is bit-identical to them.
        exchange: Connected to the others; None if there are none.

    Raises:
        RuntimeError: A replica is gone or silent.
    """
    means: dict[int, Tensor] = {}
    for dtype in (torch.float32, torch.float64):
        chosen = [index for index, tensor in enumerate(tensors) if sum_dtype(tensor) == dtype]
        if not chosen:
            continue
        flat = torch.cat([tensors[index].detach().to("cpu", dtype).flatten() for index in chosen])
        if weight:
            flat.mul_(weight)
        else:
            flat.zero_()
        if exchange is not None:
            exchange.sum(flat)
        parts = torch.split(flat, [tensors[index].numel() for index in chosen])
        for index, part in zip(chosen, parts, strict=True):
            tensor = tensors[index]
            mean = part if tensor.dtype.is_floating_point else part.round()
            means[index] = mean.view(tensor.shape)
    return [means[index] for index in range(len(tensors))]


def sum_dtype(tensor: Tensor) -> torch.dtype:
    """Return the type in which a tensor is averaged."""
    small = tensor.dtype.is_floating_point and tensor.dtype.itemsize <= 4
    return torch.float32 if small else torch.float64
