"""Traces of PyTorch's own profiler, for the epochs that the user chose.

Under ``torchprof`` the training process runs `torch.profiler` during some epochs, or during
`radt.Run.profile`, and writes what it found as a file that Chrome and Perfetto open:
``torch-epoch-2.json.gz``, ``torch-profile.json.gz``, ``torch-steps.json.gz``; with the rank in it
(``torch-epoch-2-rank-1.json.gz``) in all ranks but the first.

**The clock.** PyTorch counts time its own way, so a trace says itself how its times relate to the
monotonic clock of everything else in radt. At its beginning and at its end there is an event
called ``radt.clock``, and the trace's top level says when these were::

    "radt_clock": {
        "marker": "radt.clock",
        "monotonic_ns": [812345678901234, 812349876543210],
        "uncertainty_ns": [2100, 1800],
        "wall_ns": [1767225600000000000, 1767225604197641976],
        "offset_ns": 1766413254321098765,
        "run_id": "…", "process": "rank 1", "pid": 4711
    }

In ascending order of ``ts``, the n-th complete event (``"ph": "X"``) whose name is the marker and
whose ``cat`` is ``user_annotation`` began at ``monotonic_ns[n]``, give or take
``uncertainty_ns[n]``. So ``monotonic = monotonic_ns[0] + (ts - ts_0) * 1000``; a trace that was cut
off may have the first mark only. ``offset_ns`` is what radt's clock of this boot adds to monotonic
time. ``process`` is the rank, empty for the first or only one.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from itertools import count
from typing import Any

from radt.clock import Clock
from radt.errors import described
from radt.run.notices import warn_once
from radt.run.target import RunTarget
from radt.run.torch_options import TRACE_WORD, TraceOptions, loaded_torch

#: Name of the events that tie a trace to the monotonic clock.
CLOCK_MARKER = "radt.clock"
#: Where the trace's top level says when they were.
CLOCK_KEY = "radt_clock"

#: Traces are long and alike: a higher level takes minutes and saves little.
_COMPRESSION = 3


class _Trace:
    """PyTorch's profiler while it is on, for ``what``: ``epoch-2``, ``profile`` or ``steps``."""

    def __init__(self, torch: Any, options: TraceOptions, what: str) -> None:
        self.what = what
        self.steps = 0
        self._step = ExitStack()
        self._marks: defaultdict[str, list[int]] = defaultdict(list)
        self._record_function = torch.profiler.record_function
        if torch.autograd._profiler_enabled():  # noqa: SLF001 - its only name
            # A second profiler would silently take over the first one's events.
            raise RuntimeError("the script has a profiler of its own on")
        with self._record_function(CLOCK_MARKER):
            pass  # the first start in a process takes longer
        activities = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        self.profiler = torch.profiler.profile(
            activities=activities,
            record_shapes=options.shapes,
            profile_memory=options.memory,
            with_stack=options.stack,
        )
        self.profiler.start()
        try:
            self._mark()
        except BaseException:
            self.profiler.stop()
            raise

    def _mark(self) -> None:
        """Add an event to the trace whose monotonic time is known."""
        before_ns = time.monotonic_ns()
        with self._record_function(CLOCK_MARKER):
            after_ns = time.monotonic_ns()
            wall_ns = time.time_ns()
        uncertainty_ns = (after_ns - before_ns + 1) // 2
        self._marks["monotonic_ns"].append(after_ns - uncertainty_ns)
        self._marks["uncertainty_ns"].append(uncertainty_ns)
        self._marks["wall_ns"].append(wall_ns - uncertainty_ns)

    def next_step(self, number: int) -> None:
        """End a step and begin the next one, each an event named as other tools expect."""
        self._step.close()
        self._step.enter_context(self._record_function(f"ProfilerStep#{number}"))

    def stop(self, **origin: object) -> None:
        self._step.close()
        try:
            self._mark()
            offset_ns = Clock.for_machine().offset_ns
            clock = {"marker": CLOCK_MARKER, **self._marks, "offset_ns": offset_ns, **origin}
            self.profiler.add_metadata_json(CLOCK_KEY, json.dumps(clock))
        finally:
            self.profiler.stop()


class TorchTracer:
    """Decides when to trace, from the epochs, ranges and steps that the script reports.

    Without the option ``epochs`` there is one trace: of the first `radt.Run.profile` range, of the
    second epoch (of the first if there is only one) or, in a script that has neither, of its steps
    from the second on; whichever comes first. Failures are reported once, and training continues.
    Only the thread that created the tracer is traced.
    """

    def __init__(self, options: TraceOptions, target: RunTarget) -> None:
        self._options = options
        self._target = target
        self._trace: _Trace | None = None
        self._traced = 0
        self._epochs_begun = 0
        self._in_epoch = False
        self._trouble = ""
        self._owner = (os.getpid(), threading.get_ident())

    def epoch_begins(self, number: int, total: int | None) -> None:
        """Start a trace if this epoch is wanted. ``total`` is the number of epochs, if known."""
        if not self._here():
            return
        self._finish("steps")
        self._in_epoch = True
        self._epochs_begun += 1
        if self._options.epochs is not None:
            wanted = any(number in part for part in self._options.epochs)
        else:
            wanted = self._wants_any and self._epochs_begun == (1 if total == 1 else 2)
        if wanted:
            self._start(f"epoch-{number}")

    def epoch_ended(self) -> None:
        """End the trace of an epoch."""
        if self._here():
            self._in_epoch = False
            self._finish("epoch")

    def range_begins(self) -> None:
        """Start a trace if a `radt.Run.profile` range is wanted."""
        if self._here() and self._wants_any:
            self._start("profile")

    def range_ended(self) -> None:
        """End the trace of a range."""
        if self._here():
            self._finish("profile")

    def step_begins(self, number: int) -> None:
        """Mark the start of the first step of a loop."""
        trace = self._trace
        if trace is not None and self._here():
            self._guarded(lambda: trace.next_step(number))

    def stepped(self, number: int) -> None:
        """Mark the end of a step. Start or end a trace if it is due."""
        if not self._here():
            return
        if self._trace is not None:
            self._trace.steps += 1
            if self._trace.steps >= self._options.steps:
                self._finish()
        elif self._wants_any and not self._in_epoch:
            self._start("steps")
        self.step_begins(number + 1)

    def close(self) -> str:
        """End and write the trace, if one is open. Return why there is none, or ""."""
        if not self._here():
            return ""
        self._finish()
        if not self._traced and not self._trouble:
            self._trouble = self._why_nothing()
            warn_once(f"{TRACE_WORD} wrote no trace: {self._trouble}")
        return self._trouble

    def _why_nothing(self) -> str:
        if loaded_torch() is None:
            return "the script has not imported torch"
        if self._options.epochs is not None and self._epochs_begun:
            return f"the script has had {self._epochs_begun} epochs, and none of those chosen"
        return (
            "the script has not said when its epochs begin (run.epochs, run.epoch, run.profile or "
            "run.step)"
        )

    def _here(self) -> bool:
        return self._owner == (os.getpid(), threading.get_ident())

    @property
    def _wants_any(self) -> bool:
        """True if there should be one trace, of whatever comes first, and there is none yet."""
        return self._options.epochs is None and not self._traced

    def _start(self, what: str) -> None:
        torch = loaded_torch()
        if torch is None or self._trace is not None or self._trouble:
            return

        def start() -> None:
            self._trace = _Trace(torch, self._options, what)

        self._guarded(start)

    def _finish(self, what: str = "") -> None:
        """End the trace and write it, if its name starts with ``what``."""
        trace = self._trace
        if trace is not None and trace.what.startswith(what):
            self._trace = None
            self._guarded(lambda: self._write(trace))

    def _write(self, trace: _Trace) -> None:
        """Write the trace under a temporary name, then move it, so that it appears atomically."""
        run_id, rank = self._target.run_id, self._target.rank
        trace.stop(run_id=run_id, process=f"rank {rank}" if rank else "", pid=os.getpid())
        stem = f"torch-{trace.what}" + (f"-rank-{rank}" if rank else "")
        spool = self._target.run_dir.path
        mark = f".incoming-{os.getpid()}-{threading.get_ident()}"
        plain, packed = spool / f"{mark}.json", spool / f"{mark}.json.gz"
        try:
            trace.profiler.export_chrome_trace(str(plain))
            with plain.open("rb") as source, gzip.open(packed, "wb", _COMPRESSION) as file:
                shutil.copyfileobj(source, file, 1 << 20)
            reports = self._options.reports
            reports.mkdir(parents=True, exist_ok=True)
            names = (reports / f"{stem}{f'-{n}' if n > 1 else ''}.json.gz" for n in count(1))
            # Another block of the script may have epochs of the same numbers.
            packed.replace(next(path for path in names if not path.exists()))
        finally:
            plain.unlink(missing_ok=True)
            packed.unlink(missing_ok=True)
        self._traced += 1

    def _guarded(self, action: Callable[[], object]) -> None:
        try:
            action()
        except Exception as error:  # noqa: BLE001 - a profiler must never end training
            self._trouble = described(error)
            warn_once(f"{TRACE_WORD} does not work: {self._trouble}. Training goes on")
            if (trace := self._trace) is not None:
                self._trace = None
                self._guarded(trace.profiler.stop)
