"""NVIDIA Nsight: Systems for time lines, Compute for the inside of kernels.

``nsys`` and ``ncu`` record only code inside a range ``profile`` (`radt.Run.profile`, or NVTX
``range_push("profile")``), ``nsysraw`` the whole run, ``ncuraw`` its first kernels. With
``ncuattach``, the run waits at its first CUDA call until Nsight Compute attaches.

Options as of Nsight Systems and Compute 2026:
https://docs.nvidia.com/nsight-systems/UserGuide/, https://docs.nvidia.com/nsight-compute/NsightComputeCli/
"""

from __future__ import annotations

import functools
import os
import re
import shlex
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from radt.listeners.api import Availability, ProfiledRun, Profiler

#: The NVTX range to record.
RANGE = "profile"
#: Folders in which installers put the tools without adding them to PATH.
_PLACES: Mapping[str, Sequence[str]] = {
    "nsys": (
        "/usr/local/cuda/bin/nsys",
        "/usr/local/cuda-*/bin/nsys",
        "/opt/nvidia/nsight-systems/*/bin/nsys",
        "/opt/nvidia/nsight-systems/*/target-linux-*/nsys",
        "/opt/nvidia/nsight-systems-cli/*/bin/nsys",
        "/opt/nvidia/nsight-systems-cli/*/target-linux-*/nsys",
    ),
    "ncu": (
        "/usr/local/cuda/bin/ncu",
        "/usr/local/cuda-*/bin/ncu",
        "/opt/nvidia/nsight-compute/*/ncu",
        "/usr/local/cuda-*/nsight-compute-*/ncu",
    ),
}
#: Number of kernels that ``ncuraw`` records: each is replayed dozens of times.
RAW_KERNELS = 100
#: Ports below 1024 are for system services.
_PORTS = range(1024, 65536)
_DEFAULT_PORT = 49152
_ROOT = Path("/")


@functools.lru_cache(maxsize=16)
def find_tool(tool: str, path: str) -> str:
    """Return the tool's path: on PATH, else the newest in the usual folders; empty if not found."""
    if on_path := shutil.which(tool, path=path):
        return os.path.abspath(on_path)  # noqa: PTH100 - keeps the name of a link
    for pattern in _PLACES[tool]:
        places = [place for place in _ROOT.glob(pattern[1:]) if os.access(place, os.X_OK)]
        if places:
            return str(max(places, key=_version))
    return ""


def _version(path: Path) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", str(path))]


class _Nsight(Profiler):
    """The common part of the tools."""

    takes_gpu_counters: ClassVar[bool] = True

    tool: ClassVar[str]
    product: ClassVar[str]

    @classmethod
    def probe(cls) -> Availability:
        if _place_of(cls.tool):
            return Availability(True)
        return Availability(
            False,
            f"{cls.tool} is neither on PATH nor in the usual folders",
            f"Install {cls.product} (https://developer.nvidia.com/tools-downloads) or put it on "
            "PATH",
        )

    def prefix(self, run: ProfiledRun) -> Sequence[str]:
        # If the tool is missing, use its name: starting it then fails with a clear error.
        return [_place_of(self.tool) or self.tool, *self._options(run)]

    def _options(self, run: ProfiledRun) -> Iterable[str]:
        raise NotImplementedError

    def _report(self, run: ProfiledRun) -> str:
        """Return the report's path without suffix; both tools expand ``%``."""
        return str(run.reports / f"{self.name}_{run.label}").replace("%", "%%")


def _place_of(tool: str) -> str:
    return find_tool(tool, os.environ.get("PATH", os.defpath))


class NsysRaw(_Nsight):
    """Nsight Systems over the whole run."""

    name = "nsysraw"
    tool = "nsys"
    product = "Nsight Systems"

    def _options(self, run: ProfiledRun) -> Iterable[str]:
        yield from ("profile", "--trace=cuda,nvtx", "--cuda-memory-usage=true")
        yield from (f"--output={self._report(run)}", "--force-overwrite=true")
        yield from ("--show-output=true", "--stop-on-exit=true")
        # Do not wait for processes that outlive the script: they would keep the run from ending.
        yield "--wait=primary"
        yield from self._capture()

    def _capture(self) -> Iterable[str]:
        return ()


class Nsys(NsysRaw):
    """Nsight Systems over each range ``profile``, a report for each."""

    name = "nsys"

    def _capture(self) -> Iterable[str]:
        yield from ("--capture-range=nvtx", f"--nvtx-capture={RANGE}")
        # The end of a range must end neither the run nor the recording of further ranges.
        yield from ("--capture-range-end=repeat", "--kill=none")

    def environment(self, run: ProfiledRun) -> Mapping[str, str]:  # noqa: ARG002
        # Without it, only names that were registered with NVTX start a capture.
        return {"NSYS_NVTX_PROFILER_REGISTER_ONLY": "0"}


class _Compute(_Nsight):
    """Nsight Compute, also of the processes that the program starts."""

    tool = "ncu"
    product = "Nsight Compute"

    def _options(self, run: ProfiledRun) -> Iterable[str]:
        yield from ("--target-processes", "all")
        yield from ("--export", self._report(run), "--force-overwrite")


class Ncu(_Compute):
    """Nsight Compute on the kernels inside a range ``profile``."""

    name = "ncu"

    def _options(self, run: ProfiledRun) -> Iterable[str]:
        yield from super()._options(run)
        # With the slash, a push/pop range; without it, a start/end range.
        yield from ("--nvtx", "--nvtx-include", f"{RANGE}/")
        # PyTorch launches kernels of backward passes from threads that have not pushed the range.
        yield from ("--nvtx-push-pop-scope", "process")


class NcuRaw(_Compute):
    """Nsight Compute on the first kernels."""

    name = "ncuraw"
    accepts: ClassVar[Mapping[str, str]] = {
        "kernels=NUMBER": f"how many kernels are recorded; default {RAW_KERNELS}"
    }

    @classmethod
    def check_option(cls, word: str, value: str | None) -> None:  # noqa: ARG003 - it has one
        if (_number(value) or 0) < 1:
            raise ValueError("expected a number of kernels, from 1")

    def _options(self, run: ProfiledRun) -> Iterable[str]:
        yield from super()._options(run)
        yield from ("--launch-count", run.options.get("kernels") or str(RAW_KERNELS))


class NcuAttach(_Compute):
    """Lets the run wait at its first CUDA call until Nsight Compute attaches to it."""

    name = "ncuattach"
    accepts: ClassVar[Mapping[str, str]] = {
        "port=NUMBER": f"the port to attach to, as others may wait on {_DEFAULT_PORT}"
    }

    @classmethod
    def check_option(cls, word: str, value: str | None) -> None:  # noqa: ARG003 - it has one
        if _number(value) not in _PORTS:
            raise ValueError(f"expected a port from {_PORTS.start} to {_PORTS.stop - 1}")

    def _options(self, run: ProfiledRun) -> Iterable[str]:
        yield from ("--mode", "launch", "--target-processes", "all", "--port", _port(run))

    def notice(self, run: ProfiledRun) -> str:
        words = [_place_of(self.tool) or self.tool, "--mode", "attach", "--hostname", "127.0.0.1"]
        words += ["--port", _port(run), "--export", self._report(run), "--force-overwrite"]
        return f"waits at its first CUDA call for {shlex.join(words)}"


def _number(value: str | None) -> int | None:
    return int(value) if value and value.isascii() and value.isdigit() else None


def _port(run: ProfiledRun) -> str:
    return run.options.get("port") or str(_DEFAULT_PORT)
