"""Connections between the replicas of an `ElasticAverager`: a count they share, and sums."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
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

#: A part of a sum that has to arrive within the timeout, however large the model is.
_BUCKET_BYTES = 8 << 20
_PORT_SEPARATOR = "|"


class Exchange:
    """What one replica sends to and receives from the others.

    Each replica has a store (`torch.distributed.TCPStore`, which knows no passwords); that of the
    first one in a round is used by all.

    Args:
        host: Address of this machine's interface by which peers reach this replica.
        timeout_s: How long a peer may be silent within a sum.

    Attributes:
        address: Of this replica's store.
        mesh: Name of the connections that sums use at present; empty if there are none.
        mesh_size: How many replicas they connect.
    """

    def __init__(self, host: str, timeout_s: float) -> None:
        self._host, self._timeout = host, timedelta(seconds=timeout_s)
        listener = listening(host)
        port: int = listener.getsockname()[1]
        self._own: Any = TCPStore(
            *(host, port),
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=listener.detach(),  # else it listens on all interfaces
        )
        self.address = f"{host}{_PORT_SEPARATOR}{self._own.port}"
        self.mesh, self.mesh_size = "", 0
        self._gloo: Any = None
        self._store: Any = None
        self._store_address = ""

    def use_store(self, address: str) -> None:
        """Count in the store at this address from now on.

        Raises:
            RuntimeError: It cannot be reached.
        """
        if address == self._store_address and self._store is not None:
            return
        self._store = None
        host, _, port = address.rpartition(_PORT_SEPARATOR)
        self._store = TCPStore(
            host, int(port), is_master=False, wait_for_workers=False, timeout=self._timeout
        )
        self._store_address = address

    def count(self, key: str, number: int) -> int:
        """Add to a number of the store, and return what all replicas have added.

        Raises:
            RuntimeError: The store's replica is gone, or was unreachable for a moment; then
                `use_store` connects again.
        """
        try:
            return int(self._connected().add(key, number))
        except RuntimeError:
            self._store = None  # a connection that failed once never works again
            raise

    def wait(self, keys: Sequence[str], timeout_s: float) -> bool:
        """Return whether each of these keys has been counted within the time.

        Raises:
            RuntimeError: The store's replica is gone.
        """
        try:
            self._connected().wait(list(keys), timedelta(seconds=timeout_s))
        except DistStoreError:
            return False
        return True

    def forget(self, keys: Sequence[str]) -> None:
        """Free the memory of keys that nobody needs, if they are in this replica's store."""
        for key in keys:
            self._own.delete_key(key)

    def _connected(self) -> Any:
        if self._store is None:
            raise RuntimeError("the replicas' store is not connected")
        return self._store

    def connect(self, mesh: str, rank: int, replicas: int) -> None:
        """Connect to the other replicas of a round, which call this, too.

        Raises:
            RuntimeError: One of them is gone or silent.
        """
        self.disconnect()
        options: Any = ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # noqa: SLF001
        options._devices = [ProcessGroupGloo.create_device(hostname=self._host)]  # noqa: SLF001
        options._timeout = self._timeout  # noqa: SLF001
        self._gloo = ProcessGroupGloo(
            PrefixStore(mesh, self._store),
            rank,
            replicas,
            options,
        )
        self.mesh, self.mesh_size = mesh, replicas

    def disconnect(self) -> None:
        """Close the connections that sums use."""
        self._gloo, self.mesh, self.mesh_size = None, "", 0

    def sum(self, flat: Tensor) -> None:
        """Replace a flat CPU tensor by its sum over all replicas, the same bits in each.

        Raises:
            RuntimeError: A replica is gone or silent; the tensor's content is undefined.
        """
        options: Any = AllreduceOptions()
        options.reduceOp = ReduceOp.SUM
        for bucket in torch.split(flat, max(1, _BUCKET_BYTES // flat.element_size())):
            self._gloo.allreduce([bucket], options).wait()

    def confirm(self) -> None:
        """Return once every replica has called this: all of them have the sums.

        Raises:
            RuntimeError: A replica is gone or silent.
        """
        self.sum(torch.zeros(1))

    def close(self) -> None:
        """Close all connections and the own store."""
        self.disconnect()
        self._store = self._own = None


def averaged(tensors: Sequence[Tensor], weight: float, exchange: Exchange | None) -> list[Tensor]:
    """Return the weighted mean of each tensor over all replicas, on the CPU.

    Args:
        tensors: The same shapes and types in each replica. Integers are averaged and rounded.
        weight: This replica's; the replicas' weights add up to 1. At 0 its values do not matter,
            even if they are not finite; at 1 the result is bit-equal to them.
        exchange: Connected to the others; None if there are none.

    Raises:
        RuntimeError: A replica is gone or silent.
    """
    means: dict[int, Tensor] = {}
    for dtype in (torch.float32, torch.float64):
        chosen = [index for index, tensor in enumerate(tensors) if _sum_dtype(tensor) == dtype]
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
            means[index] = mean.view(tensor.shape).to(tensor.dtype)
    return [means[index] for index in range(len(tensors))]


def _sum_dtype(tensor: Tensor) -> torch.dtype:
    small = tensor.dtype.is_floating_point and tensor.dtype.itemsize <= 4
    return torch.float32 if small else torch.float64


def add_quietly(exchange: Exchange, key: str, number: int) -> int | None:
    """Add to a count; None if the store's replica is gone, where nobody needs the count then."""
    with contextlib.suppress(RuntimeError):
        return exchange.count(key, number)
    return None
