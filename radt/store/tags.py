"""Tags of runs that more than one part of radt reads."""

from __future__ import annotations

#: The profiler that slowed the run down. Comparisons leave its workload out unless asked.
PROFILED = "radt.profiled"
#: Of the other runs of its workload: the letters of those that were profiled beside it.
PROFILED_BESIDE = "radt.profiled_beside"
#: What a profiler has not done, and why.
PROFILER_PROBLEM = "radt.profiler_problem"
#: What the user has to do for a profiler.
PROFILER_NOTICE = "radt.profiler_notice"
#: When the run's samples were thinned, and to how many (`radt prune`).
PRUNED = "radt.pruned"
#: CPU seconds of the collector and what it started, from the run's start to its end.
TRACKER_CPU_S = "radt.tracker.cpu_s"
#: What the run's processes wrote into their journals.
TRACKER_JOURNAL_BYTES = "radt.tracker.journal_bytes"
