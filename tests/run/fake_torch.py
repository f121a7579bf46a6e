"""A torch with two GPUs, as far as radt may ask: stands in a script's folder as ``torch.py``.

It notes what it was asked, by which process, in ``asked.txt``, and has nothing else: a call that
would wait for a GPU, start CUDA or reset a counter is an AttributeError. Scripts use the device by
`use`; the environment says how it is built (``FAKE_TORCH``: words).
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

_WORDS = set(os.environ.get("FAKE_TORCH", "").split())
_MIB = 1 << 20
_memory: dict[int, dict[str, int]] = {}
_nvtx_stack: list[tuple[str, int]] = []

__version__ = "9.9.9"
version = SimpleNamespace(cuda=None if "cpu" in _WORDS else "13.0", hip=None)


def note(what: str) -> None:
    with Path("asked.txt").open("a") as file:
        file.write(f"{what} {os.getpid()}\n")


def asked() -> list[tuple[str, int]]:
    if not Path("asked.txt").exists():
        return []
    lines = Path("asked.txt").read_text().splitlines()
    return [(what, int(pid)) for what, pid in (line.rsplit(" ", 1) for line in lines)]


def use(device: int, mib: int, retries: int = 0) -> None:
    """What a script does that puts tensors on a GPU."""
    peak = max(_memory.get(device, {}).get("allocated_bytes.all.peak", 0), mib * _MIB)
    _memory[device] = {
        "allocated_bytes.all.current": mib * _MIB,
        "allocated_bytes.all.peak": peak,
        "reserved_bytes.all.current": 2 * mib * _MIB,
        "reserved_bytes.all.peak": 2 * peak,
        "num_alloc_retries": retries,
        "num_ooms": 0,
    }


def _is_initialized() -> bool:
    note("is_initialized")
    return bool(_memory)


def _device_count() -> int:
    assert _memory, "this would start CUDA"
    return 2


def _stats(device: int) -> dict[str, int]:
    assert _memory, "this would start CUDA"
    note(f"stats {device}")
    if "broken" in _WORDS:
        raise RuntimeError("the allocator is on strike")
    return _memory.get(device, dict.fromkeys(next(iter(_memory.values())), 0))


def _push(name: str) -> int:
    if "broken" in _WORDS:
        raise RuntimeError("NVTX is on strike")
    _nvtx_stack.append((name, threading.get_ident()))
    note(f"push {name}")
    return len(_nvtx_stack) - 1


def _pop() -> int:
    name, thread = _nvtx_stack.pop()
    assert thread == threading.get_ident()
    note(f"pop {name}")
    return len(_nvtx_stack)


cuda = SimpleNamespace(
    is_initialized=_is_initialized,
    is_available=lambda: "cpu" not in _WORDS,
    device_count=_device_count,
    memory_stats=_stats,
    nvtx=SimpleNamespace(range_push=_push, range_pop=_pop),
)
backends = SimpleNamespace(
    cuda=SimpleNamespace(is_built=lambda: "cpu" not in _WORDS),
    mps=SimpleNamespace(is_available=lambda: "mps" in _WORDS),
)
if "mps" in _WORDS:
    mps = SimpleNamespace(
        current_allocated_memory=lambda: 3 * _MIB, driver_allocated_memory=lambda: 5 * _MIB
    )


class _Profile:
    """Starts and stops once, in one thread, and exports when it has stopped."""

    active: _Profile | None = None

    def __init__(
        self,
        *,
        activities: list[str],
        record_shapes: bool,
        profile_memory: bool,
        with_stack: bool,
    ) -> None:
        flags = {"shapes": record_shapes, "memory": profile_memory, "stack": with_stack}
        words = (word for word, chosen in flags.items() if chosen)
        note(f"profile {'+'.join(activities)} {' '.join(words)}".rstrip())
        self._state = "new"
        self._thread = threading.get_ident()
        self._metadata: dict[str, object] = {}
        self.events: list[dict[str, object]] = []

    def start(self) -> None:
        if "nostart" in _WORDS:
            raise RuntimeError("CUPTI is on strike")
        assert (self._state, _Profile.active) == ("new", None)
        self._state, _Profile.active = "on", self

    def stop(self) -> None:
        note("stop")
        assert (self._state, _Profile.active) == ("on", self)
        assert threading.get_ident() == self._thread
        self._state, _Profile.active = "off", None

    def add_metadata_json(self, key: str, value: str) -> None:
        assert self._state == "on"
        self._metadata[key] = json.loads(value)

    def export_chrome_trace(self, path: str) -> None:
        assert self._state == "off"
        Path(path).write_text('{"half a trace": ')
        if "noexport" in _WORDS:
            raise RuntimeError("the disk is on strike")
        if "killed" in _WORDS:
            os.kill(os.getpid(), 9)
        Path(path).write_text(json.dumps(self._metadata | {"traceEvents": self.events}))


class _Activity:
    CPU = "cpu"
    CUDA = "cuda"


@contextlib.contextmanager
def _record_function(name: str) -> Iterator[None]:
    profile = _Profile.active
    if "nosteps" in _WORDS and name.startswith("ProfilerStep"):
        raise RuntimeError("no such thing")
    yield
    if profile is not None and profile is _Profile.active:
        profile.events.append({"ph": "X", "cat": "user_annotation", "name": name})


autograd = SimpleNamespace(_profiler_enabled=lambda: _Profile.active is not None)
profiler = SimpleNamespace(
    profile=_Profile, ProfilerActivity=_Activity, record_function=_record_function
)
