"""States of random number generators: read, restored, and stored as plain values."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class RandomState:
    """States of the global generators of Python, NumPy, PyTorch and its CUDA devices.

    CUDA's states are missing if CUDA is not initialised; nothing here initialises it. In a seeded
    state, they start from the seed once CUDA is initialised.
    """

    python: tuple[Any, ...]
    numpy: tuple[Any, ...]
    torch: Tensor
    cuda: tuple[Tensor, ...]
    cuda_seed: int | None = None

    @classmethod
    def current(cls, cuda_seed: int | None = None) -> Self:
        """Return the current states. If CUDA has none yet, they will start from the seed."""
        initialized = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        cuda = torch.cuda.get_rng_state_all() if initialized else []
        state = torch.get_rng_state()
        return cls(random.getstate(), _numpy.state(), state, tuple(cuda), cuda_seed)

    @classmethod
    def seeded(cls, seed: int) -> Self:
        """Return the states after seeding, without touching the global generators."""
        initialized = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        devices = torch.cuda.device_count() if initialized else 0
        numpy: Any = np.random.RandomState(seed % 2**32)
        return cls(
            random.Random(seed).getstate(),  # noqa: S311 - not for cryptography
            numpy.get_state(),
            torch.Generator().manual_seed(seed).get_state(),
            tuple(
                torch.Generator(f"cuda:{at}").manual_seed(seed).get_state() for at in range(devices)
            ),
            seed,
        )

    def restore(self) -> None:
        """Set the generators to these states."""
        random.setstate(self.python)
        _numpy.restore(self.numpy)
        torch.set_rng_state(self.torch)
        if self.cuda:
            torch.cuda.set_rng_state_all(list(self.cuda))
        elif self.cuda_seed is not None and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.manual_seed_all(self.cuda_seed)

    def draws_as(self, other: RandomState) -> bool:
        """Return True if PyTorch's generators will return the same numbers."""
        own, others = ((state.torch, *state.cuda) for state in (self, other))
        return all(map(torch.equal, own, others))

    def state_dict(self) -> dict[str, Any]:
        """Return the states as tensors and plain values, which ``torch.save`` stores safely."""
        version, numbers, gauss = self.python
        name, keys, *rest = self.numpy
        return {
            "python": [version, torch.tensor(numbers), gauss],
            "numpy": [name, torch.from_numpy(np.asarray(keys).astype(np.int64)), *rest],
            "torch": self.torch,
            "cuda": list(self.cuda),
            "cuda_seed": self.cuda_seed,
        }

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any]) -> Self:
        """Return the states that `state_dict` described."""
        version, numbers, gauss = state["python"]
        name, keys, *rest = state["numpy"]
        numpy = (name, keys.numpy().astype(np.uint32), *rest)
        python = (version, tuple(numbers.tolist()), gauss)
        return cls(python, numpy, state["torch"], tuple(state["cuda"]), state["cuda_seed"])


#: Its stubs lack some of its functions.
_random: Any = np.random


class _NumpyGenerator:
    """NumPy's global generator. NumPy's functions for its state take longer than a small step.

    Instead, its memory is compared and copied. The memory has everything except the second half of
    a pair of normal numbers; states with such a half are left to NumPy.
    """

    def __init__(self) -> None:
        #: A state without such a half, and the memory that belongs to it.
        self._seen: tuple[Any, ...] = ()
        self._memory = b""

    def state(self) -> tuple[Any, ...]:
        """Return the state."""
        memory = self._read()
        if memory and memory == self._memory:
            return self._seen
        state: Any = _random.get_state(legacy=bool(memory))
        self._remember(state)
        return state  # type: ignore[no-any-return]

    def restore(self, state: tuple[Any, ...]) -> None:
        """Set the state."""
        if self._seen and self._read() == self._memory and not _has_half(state):
            kind, keys, position, *_ = state
            if kind == "MT19937":
                memory = keys.astype(np.uint32).tobytes() + int(position).to_bytes(4, "little")
                ctypes.memmove(self._address(), memory, _MEMORY_BYTES)
                self._seen, self._memory = state, memory
                return
        _random.set_state(state)
        self._remember(state)

    def _remember(self, state: tuple[Any, ...]) -> None:
        self._memory = b"" if _has_half(state) else self._read()
        self._seen = state if self._memory else ()

    def _read(self) -> bytes:
        """Return the memory of a Mersenne Twister; b"" for a generator that the user set."""
        if not isinstance(_random.get_bit_generator(), np.random.MT19937):
            return b""
        return ctypes.string_at(self._address(), _MEMORY_BYTES)

    @staticmethod
    def _address() -> int:
        address: int = _random.get_bit_generator().ctypes.state_address
        return address


def _has_half(state: tuple[Any, ...]) -> bool:
    """Return True if a state needs NumPy. A dictionary belongs to a generator that the user set."""
    return isinstance(state, dict) or bool(state[3])


#: Memory of a Mersenne Twister: 624 words of 32 bits, and the position among them.
_MEMORY_BYTES = 624 * 4 + 4
_numpy = _NumpyGenerator()


def generators_of(loader: object) -> list[torch.Generator]:
    """Return the generators from which a loader draws, including those of its samplers."""
    batch_sampler = getattr(loader, "batch_sampler", None)
    samplers = (getattr(loader, "sampler", None), batch_sampler)
    drawing = (loader, *samplers, getattr(batch_sampler, "sampler", None))
    generators = (getattr(each, "generator", None) for each in drawing)
    return list({id(g): g for g in generators if isinstance(g, torch.Generator)}.values())


def states_of(generators: Iterable[torch.Generator]) -> list[Tensor]:
    return [generator.get_state() for generator in generators]


def set_states(generators: Iterable[torch.Generator], states: Iterable[Tensor]) -> None:
    for generator, state in zip(generators, states, strict=True):
        generator.set_state(state)
