"""What shows results works where there is no Linux: no ``/proc``, none of its calls and modules."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.frontend.workload_support import Bench, planted_three

#: Refuses what only Linux has, then opens a store that was written on Linux.
_PROGRAM = '''
import builtins, io, os, signal, subprocess, sys, sysconfig, time

class Refused(Exception):
    """Not an OSError, so that nothing takes it for a file that is missing."""

real_open, real_os_open, real_listdir, real_scandir = open, os.open, os.listdir, os.scandir

def guarded(real):
    def call(path, *args, **kwargs):
        if isinstance(path, (str, bytes, os.PathLike)):
            text = os.fsdecode(path)
            if text.startswith(("/proc", "/sys", "/dev/shm")):
                raise Refused(text)
        return real(path, *args, **kwargs)
    return call

builtins.open = io.open = guarded(real_open)
os.open, os.listdir, os.scandir = map(guarded, (real_os_open, real_listdir, real_scandir))
for name in ("sched_getaffinity", "sched_setaffinity", "pidfd_open", "eventfd", "memfd_create",
             "posix_fadvise", "posix_fallocate", "getxattr", "setxattr", "splice", "waitid"):
    delattr(os, name) if hasattr(os, name) else None
for name in ("CLOCK_BOOTTIME", "CLOCK_MONOTONIC_RAW"):
    delattr(time, name) if hasattr(time, name) else None
del signal.pidfd_send_signal
for name in ("fcntl", "resource", "pwd", "grp", "termios", "psutil", "pynvml", "prctl"):
    sys.modules[name] = None
sysconfig.get_config_vars()
sys.platform = "darwin"

from pathlib import Path

import radt

import radt.analysis.report
import radt.cli.dashboard, radt.cli.export, radt.cli.report
from radt.frontend.app import PAGES, create_app
from radt.frontend.auth import DashboardAccess
from radt.frontend.charts.timeseries import Look, figure
from radt.frontend.data.chart_data import chart_data
from radt.frontend.data.metrics import automatic_metrics, quantities
from radt.frontend.data.cached_store import CachedStore
from radt.frontend.data.spec import BoardSpec, ChartSpec
from radt.frontend.selection import read_selection
from radt.frontend.view import View

home = Path(sys.argv[1])
source = CachedStore(home / "radt.db")
app = create_app(source, DashboardAccess())
with app.server.test_request_context():
    for page in PAGES:
        page.layout(source, View())
selection = read_selection(source, View())
metric = automatic_metrics(quantities(source, tuple(selection.runs)))[0]
data = chart_data(source, selection, ChartSpec(metric), BoardSpec(), None)
print("points", figure(data, Look())["layout"]["meta"]["points"])
experiment = source.reader.runs()[0].experiment
print("report", len(radt.analysis.report.read_report(source.reader, experiment).workloads))
frame = radt.load(source.reader.runs()[0].run_id, home=home)
print("loaded", len(frame))
from click.testing import CliRunner
done = CliRunner().invoke(radt.cli.report.command, [experiment, "--home", str(home)])
assert done.exit_code == 0, (done.output, done.exception)
done = CliRunner().invoke(
    radt.cli.export.command,
    [source.reader.runs()[0].run_id, "--home", str(home), "-o", str(home / "out.csv")],
)
assert done.exit_code == 0, (done.output, done.exception)
source.close()
'''


def test_results_open_where_there_is_no_linux(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "radt.db")
    planted_three(bench)
    bench.close()

    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(tmp_path)], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    assert {line.split()[0] for line in done.stdout.splitlines()} == {"points", "report", "loaded"}
