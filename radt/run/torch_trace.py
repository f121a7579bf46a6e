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
        "run_id": "…", "process": "rank 1", "pid": 4711
    }

In ascending order of ``ts``, the n-th complete event (``"ph": "X"``) whose name is the marker and
whose ``cat`` is ``user_annotation`` began at ``monotonic_ns[n]``, give or take
``uncertainty_ns[n]``. So ``monotonic = monotonic_ns[0] + (ts - ts_0) * 1000``; a trace that was cut
off may have the first mark only. ``process`` is the rank, empty for the first or only one.
"""

from __future__ import annotations

#: Name of the events that tie a trace to the monotonic clock.
CLOCK_MARKER = "radt.clock"
#: Where the trace's top level says when they were.
CLOCK_KEY = "radt_clock"
