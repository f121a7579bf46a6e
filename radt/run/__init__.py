"""What training scripts use of radt. Imports the standard library only."""

from radt.run.compat import RADTBenchmark, log_metric, log_metrics, shutdown
from radt.run.run import Run, active_run

__all__ = ["RADTBenchmark", "Run", "active_run", "log_metric", "log_metrics", "shutdown"]
