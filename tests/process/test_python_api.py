"""`radt.run_experiment` as a notebook or a script calls it."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from radt.model import RunStatus
from tests.support.bench import TIMEOUT_S, Bench, wait_until

TRAIN = """\
import os, sys, radt
with radt.Run() as run:
    run.log_metric("loss", 1.0)
print("arguments", *sys.argv[1:])
raise SystemExit(3 if "--fail" in sys.argv else 0)
"""

#: Keeps its arguments.
ECHO = """\
import json, os, pathlib, sys
pathlib.Path(f"{os.getpid()}.argv").write_text(json.dumps(sys.argv[1:]))
"""

#: Tells that it runs, then waits for the test, or for a signal.
BLOCK = """\
import os, sys
with open(os.environ["STARTED"], "a") as file:
    file.write(sys.argv[1] + "\\n")
with open(sys.argv[1]) as pipe:
    pipe.read()
"""

TABLE = """\
import pandas as pd, radt
frame = pd.DataFrame(
    {
        "Workload": [1, 2, 2],
        "File": "train.py",
        "Params": ["--lr 0.1", None, ["--fail"]],
        "Devices": "cpu",
        "Seed": [1.0, 2.5, 3.0],
    },
    index=["x", "y", "z"],
)
"""


@dataclass
class Notebook:
    """Python programs in the bench's folder."""

    bench: Bench

    def start(self, program: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", program],
            cwd=self.bench.folder,
            env=self.bench.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.bench.started.append(process)
        return process

    def run(self, program: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        process = self.start(program)
        out, err = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == code, out + err
        return subprocess.CompletedProcess(process.args, code, out, err)

    def result(self, program: str) -> dict[str, list[object]]:
        """The columns of the frame that the program leaves in ``table``."""
        done = self.run(program + '\nprint("\\n" + table.to_json(orient="split"))')
        split = json.loads(done.stdout.splitlines()[-1])
        columns = zip(*split["data"], strict=True)
        return {
            "index": split["index"],
            **{name: list(values) for name, values in zip(split["columns"], columns, strict=True)},
        }

    def frames(self) -> list[Path]:
        return sorted((self.bench.home / "frames").glob("*.csv"))


@pytest.fixture
def notebook(bench: Bench) -> Notebook:
    bench.script("train.py", TRAIN)
    bench.script("block.py", BLOCK)
    bench.env["STARTED"] = str(bench.folder / "started")
    return Notebook(bench)


def test_a_table_comes_back_with_its_statuses(notebook: Notebook) -> None:
    table = notebook.result(
        TABLE + "table = radt.run_experiment(frame)\n"
        "assert list(table.dtypes[frame.columns]) == list(frame.dtypes)\n"
        "assert 'Status' not in frame"
    )

    assert list(table) == [
        "index",
        "Workload",
        "File",
        "Params",
        "Devices",
        "Seed",
        "Status",
        "Run",
    ]
    assert table["index"] == ["x", "y", "z"]
    assert table["Status"] == ["FINISHED", "FINISHED", "FAILED: exit code 3"]
    assert table["Params"] == ["--lr 0.1", None, ["--fail"]]
    run = notebook.bench.reader.find_run(str(table["Run"][2]))
    assert (run.status, run.letter) == (RunStatus.FAILED, "b")
    assert len({*table["Run"]}) == 3

    # The same rows again: with the option that the command line has, one is due.
    rerun = notebook.result(TABLE + "table = radt.run_experiment(frame, rerun=True, quiet=True)")
    assert rerun["Run"][0] == table["Run"][0]
    assert rerun["Run"][2] != table["Run"][2]
    fresh = notebook.result(
        TABLE + "table = radt.run_experiment(frame, fresh=True, home='elsewhere', only=[1])\n"
        "assert table['Status']['x'] == 'FINISHED'\n"
        "before = table['Run']['x']\n"
        "table = radt.run_experiment(frame, fresh=True, home='elsewhere', only=[1])\n"
        "assert table['Run']['x'] != before"
    )
    assert fresh["Status"] == ["FINISHED", "", ""]
    assert (notebook.bench.folder / "elsewhere" / "radt.db").exists()
    (path,) = notebook.frames()
    assert "3 runs" in notebook.bench.shown("validate", str(path))


def test_a_file_is_run_as_by_the_command_line(notebook: Notebook) -> None:
    bench = notebook.bench
    path = bench.experiment("# note\nFile,Devices,Params\ntrain.py,cpu,--a\ntrain.py,cpu,--b\n")
    bench.env["RADT_REPEAT"] = "2"

    table = notebook.result(
        "import radt\ntable = radt.run_experiment('experiment.csv', only=1, sync='context',"
        " cooldown_s=1e-05, notify=None, store_uri='none')"
    )

    assert table["Params"] == ["--a", "--b"]
    assert table["Status"] == ["FINISHED 2/2", ""], "settings hold, too"
    assert [row["Status"] for row in bench.rows(path)] == table["Status"]
    assert "radt-data" in {entry.name for entry in bench.folder.iterdir()}
    done = bench.radt("experiment.csv", "--repeat", "1")
    assert "1 run" in done.stdout
    assert [row["Status"] for row in bench.rows(path)] == ["FINISHED 2/2", "FINISHED"]


@pytest.mark.long
def test_a_sweep_is_a_row_a_run(notebook: Notebook) -> None:
    notebook.bench.script("echo.py", ECHO)
    path = notebook.bench.experiment(
        "file: echo.py # mine\ndevices: cpu\nmethod: random\nat_once: 2\ntrials: 2\n"
        "parameters:\n  lr: {min: 0.1, max: 0.2}\n  amp: {value: true}\n  note: {value: null}\n"
        '  tag: {value: "it\'s a\\n-b"}\n  sizes: {values: [[1, -2]]}\n',
        "sweep.yaml",
    )

    table = notebook.result(
        "import radt, pathlib\ntable = radt.run_experiment(pathlib.Path('sweep.yaml'))"
    )

    assert table["Status"] == ["FINISHED", "FINISHED"]
    assert table["Workload"] == ["000", "000"]
    rest = ["--amp", "--tag", "it's a\n-b", "--sizes", "1", "-2"]
    assert [shlex.split(str(text)) for text in table["Params"]] == [
        ["--lr", str(lr), *rest] for lr in table["lr"]
    ]
    assert table["sizes"] == [[1, -2]] * 2 and table["note"] == [None] * 2
    written = path.with_suffix(".csv").read_text(encoding="utf-8")
    assert all(str(run) in written for run in table["Run"])
    runs = [notebook.bench.reader.find_run(str(run)) for run in table["Run"]]
    assert len({run.workload_id for run in runs}) == 1
    passed = [json.loads(each.read_text()) for each in notebook.bench.folder.glob("*.argv")]
    assert sorted(passed) == sorted(["--lr", str(lr), *rest] for lr in table["lr"])
    again = notebook.bench.radt("sweep.yaml")
    assert path.with_suffix(".csv").read_text(encoding="utf-8") == written, again.stdout


def test_problems_are_in_the_error(notebook: Notebook) -> None:
    done = notebook.run(
        "import radt, pandas as pd\n"
        "frame = pd.DataFrame({'File': ['tran.py', 'train.py'], 'Devices': ['cpu', 'gpu']})\n"
        "for source in (frame, 'none.csv', 'train.py'):\n"
        "    try: radt.run_experiment(source)\n"
        "    except radt.errors.ExperimentError as error: print(error)\n"
        "for option in ({'rerum': True}, {'sync': 'end'}, {'repeat': 0}, {'only': {}},\n"
        "               {'yes': 'maybe'}, {'fresh': True}):\n"
        "    try: radt.run_experiment('none.csv', **option)\n"
        "    except (TypeError, radt.errors.UsageError) as error: print(error)\n"
        "try: radt.run_experiment([1])\n"
        "except TypeError as error: print(error)\n"
    )

    assert done.stdout.splitlines()[0] == "the table: 2 problems, nothing was started"
    for text in (
        "  row 0, File: there is no file 'tran.py'. Did you mean 'train.py'?",
        "  row 1, Devices: ",
        "none.csv: 1 problem, nothing was started",
        "  there is no such file. Check the path",
        "  expected the name of an experiment file (.csv or .yaml or .yml), got 'train.py'",
        "run_experiment() has no option 'rerum'; did you mean 'rerun'?",
        "sync: 'end' is not one of start, context",
        "repeat: expected a whole number of at least 1, got '0'",
        "only: {} is not a valid value. Give a workload or a list of them",
        "yes: 'maybe' is neither on nor off",
        "fresh is for tables. Empty the Status cells of none.csv",
        "run_experiment() takes a DataFrame or the path of an experiment file, not a list",
    ):
        assert text in done.stdout
    assert not (notebook.bench.home / "radt.db").exists(), "nothing was started"


BLOCKED = """\
import pandas as pd, radt
files = ["train.py", "block.py", "train.py"]
frame = pd.DataFrame({"File": files, "Params": ["", "pipe", "--last"], "Devices": "cpu"})
"""


def wait_started(notebook: Notebook, times: int = 1) -> None:
    started = Path(notebook.bench.env["STARTED"])
    wait_until(
        lambda: started.exists() and len(started.read_text().splitlines()) == times,
        "the blocking script runs",
    )


def release(pipe: Path) -> None:
    """Let the script that reads from the pipe go on."""
    os.close(os.open(pipe, os.O_WRONLY))


def test_an_interrupt_stops_gracefully(notebook: Notebook) -> None:
    notebook.bench.signal_ready("pipe")
    process = notebook.start(
        # As in a terminal, also where the tests themselves are a job in the background.
        "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
        + BLOCKED
        + "try: radt.run_experiment(frame)\n"
        "except KeyboardInterrupt: print('interrupted, and alive')\n"
    )
    wait_started(notebook)

    process.send_signal(signal.SIGINT)

    out, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, err
    assert out.splitlines()[-1] == "interrupted, and alive"
    (path,) = notebook.frames()
    first, second, third = notebook.bench.rows(path)
    assert (first["Status"], third["Status"]) == ("FINISHED", "")
    assert second["Status"].startswith("KILLED")


@pytest.mark.long
def test_after_a_kill_the_next_call_goes_on(notebook: Notebook) -> None:
    pipe = notebook.bench.signal_ready("pipe")
    process = notebook.start(BLOCKED + "radt.run_experiment(frame)")
    wait_started(notebook)
    process.kill()
    process.wait()
    (path,) = notebook.frames()
    before = notebook.bench.rows(path)
    assert [row["Status"] for row in before] == ["FINISHED", "RUNNING", ""]

    # Not in the main thread, where signals cannot be listened to.
    process = notebook.start(
        BLOCKED + "import threading\n"
        "tables = []\n"
        "thread = threading.Thread(target=lambda: tables.append(radt.run_experiment(frame)))\n"
        "thread.start(); thread.join()\n"
        "print('\\n' + ' '.join(tables[0]['Status']))"
    )
    wait_started(notebook, 2)
    held = notebook.run(
        BLOCKED + "try: radt.run_experiment(frame)\n"
        "except radt.errors.HeldError as error: print('held')\n"
    )
    assert held.stdout == "held\n"
    release(pipe)
    out, err = process.communicate(timeout=TIMEOUT_S)
    assert out.splitlines()[-1] == "FINISHED FINISHED FINISHED", err
    assert notebook.bench.rows(path)[0]["Run"] == before[0]["Run"], "what was done is done"


def test_a_call_leaves_no_file_of_its_store_open(notebook: Notebook) -> None:
    done = notebook.run(
        TABLE + "import os\n"
        "radt.run_experiment(frame, quiet=True)\n"
        "names = [os.path.realpath(f'/proc/self/fd/{fd}') for fd in os.listdir('/proc/self/fd')]\n"
        "print('open:', [name for name in names if 'radt.db' in name])\n"
    )
    assert "open: []" in done.stdout


def test_the_last_lines_quote_the_data_folder(notebook: Notebook) -> None:
    home = notebook.bench.folder / "my data"
    done = notebook.run(TABLE + f"radt.run_experiment(frame, quiet=True, home={str(home)!r})\n")
    assert f"radt dashboard --home {shlex.quote(str(home))}\n" in done.stdout
