"""What the runner shows, as text: 80 columns, no colour, hostile lines."""

from __future__ import annotations

import io
import os
import threading

import pytest
from rich.console import Console

from radt.collector.protocol import LiveView
from radt.model import RunStatus
from radt.runner import console as console_module
from radt.runner.console import RunConsole
from radt.runner.live import label_width, live_table, progress_text
from radt.runner.outcome import STOPPED
from radt.runner.progress import RowProgress, WorkloadProgress
from radt.runner.start import hint_lines


def plain_console(width: int = 80) -> tuple[Console, io.StringIO]:
    stream = io.StringIO()
    return Console(file=stream, width=width, highlight=False, color_system=None), stream


def ended(letter: str, status: RunStatus, reason: str = "") -> RowProgress:
    run = RowProgress(letter, f"cnn-{letter}", status, reason, letter * 32)
    run.started_monotonic_s, run.ended_monotonic_s = 10.0, 31.44
    return run


def test_lines_come_out_in_order_and_whole() -> None:
    console, stream = plain_console()
    with RunConsole(console) as output:
        output.output(0, "a", "[bold]brackets are text[/bold] " + "x" * 100)
        output.say("from radt")
        output.flush()
    assert stream.getvalue().splitlines() == [
        "  a │ [bold]brackets are text[/bold] " + "x" * 100,
        "from radt",
    ]


def test_what_a_slow_terminal_cannot_show_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console_module, "WAITING_LINES", 10)
    unblock = threading.Event()

    class SlowStream(io.StringIO):
        def write(self, text: str) -> int:
            assert unblock.wait(180)
            return super().write(text)

    stream = SlowStream()
    with RunConsole(Console(file=stream, width=80, color_system=None)) as output:
        for number in range(1000):
            output.output(0, "a", f"line {number}")
        unblock.set()
        output.flush()
    lines = stream.getvalue().splitlines()
    shown = [line for line in lines if "line " in line]
    assert 10 <= len(shown) <= 12
    missed = 1000 - len(shown)
    assert f"  … {missed} lines not shown, see output.log" in lines


def test_workload_line_names_what_did_not_finish() -> None:
    console, stream = plain_console()
    with RunConsole(console) as output:
        runs = [
            ended("a", RunStatus.FINISHED),
            ended("b", RunStatus.FAILED, "exit code 3"),
            ended("c", RunStatus.FAILED, "uv could not build it:\nerror: no solution"),
        ]
        output.workload_ended(2, 3, WorkloadProgress("net", "three", runs, start_skew_s=0.004))
        output.flush()
    assert stream.getvalue().splitlines() == [
        "  2/3  three      3 runs    ✘ 21.4 s   skew 4.00 ms",
        "       b  cnn-b  FAILED: exit code 3",
        "       c  cnn-c  FAILED: uv could not build it:",
        "            error: no solution",
    ]


def test_lines_of_workloads_stand_below_each_other() -> None:
    console, stream = plain_console()
    labels = ["solo", "seven at once, MPS", "a label that is longer than anyone would read"]
    with RunConsole(console) as output:
        output.label_width = label_width(labels)
        for position, label in zip((1, 10, 12), labels, strict=True):
            runs = [ended("a", RunStatus.FINISHED)]
            output.workload_ended(
                position, 12, WorkloadProgress("net", label, runs, repeats_done=1, repeats=3)
            )
        output.flush()
    lines = stream.getvalue().splitlines()
    assert [line[:9] for line in lines] == ["   1/12  ", "  10/12  ", "  12/12  "]
    assert lines[0].index("1 run") == lines[1].index("1 run") < lines[2].index("1 run")
    for line, label in zip(lines, labels, strict=True):
        assert line[9:].startswith(f"{label} 2/3 ")


def test_quiet_shows_the_live_table_and_no_output_of_runs() -> None:
    stream = io.StringIO()
    terminal = Console(file=stream, width=80, height=24, force_terminal=True, color_system=None)
    with RunConsole(terminal, quiet=True) as output:
        output.output(0, "a", "printed by a run")
        output.show_live(WorkloadProgress("net", "three", [RowProgress("a", "net-a")]))
        output.flush()
    assert "net-a" in stream.getvalue()
    assert "printed by a run" not in stream.getvalue()


def test_live_table_fits_80_columns_and_shows_the_newest_values() -> None:
    console, stream = plain_console()
    workload = WorkloadProgress(
        experiment="net",
        label="three",
        activity="barrier skew 4.0 ms",
        runs=[
            RowProgress(
                "a",
                "a-name-that-is-much-longer-than-the-column",
                RunStatus.RUNNING,
                started_monotonic_s=0.0,
                ended_monotonic_s=18.0,
                live=LiveView(
                    epoch=3,
                    epochs_total=5,
                    metrics={"loss": 0.41234, "accuracy": 0.9},
                    cpu_cores=0.642,
                    rss_bytes=212_300_000,
                ),
            ),
            RowProgress("b", "cnn", RunStatus.FAILED, "exit code 3"),
            RowProgress("c", "cnn"),
        ],
    )
    console.print(live_table(workload, 2, 80, 24, 3))
    text = stream.getvalue()
    assert max(len(line) for line in text.splitlines()) <= 80
    for part in ("2/3", "three", "3 runs", "▶ 00:18", "epoch 3/5", "64 % cpu  212 MB", "· waiting"):
        assert part in text
    assert "✘ exit code 3" in text


def test_hints_fit_with_a_long_folder() -> None:
    commands = ("radt dashboard --home /tmp/somewhere/radt-data", "radt report shared")
    hints = dict(
        zip(
            commands,
            ("compare in the browser", "show this table again"),
            strict=True,
        )
    )
    wide = [line.plain for line in hint_lines(hints, 120)]
    assert wide == [
        "  radt dashboard --home /tmp/somewhere/radt-data   compare in the browser",
        "  radt report shared                               show this table again",
    ]
    assert [line.plain for line in hint_lines(hints, len(wide[0]))] == wide
    assert [line.plain for line in hint_lines(hints, len(wide[0]) - 1)] == [
        "  radt dashboard --home /tmp/somewhere/radt-data",
        "    compare in the browser",
        "  radt report shared",
        "    show this table again",
    ]


def test_what_the_script_logs_goes_before_what_radt_logs_for_it() -> None:
    metrics = {"data_wait": 0.25, "samples_per_s": 5000.0, "loss": 0.41234}
    live = LiveView(epoch=3, epochs_total=5, metrics=metrics)
    run = RowProgress("a", "cnn", RunStatus.RUNNING, live=live)
    assert progress_text(run, 80) == "epoch 3/5  loss 0.412  data_wait 0.250  samples_per_s 5,000"
    assert progress_text(run, 24) == "epoch 3/5  loss 0.412"


@pytest.mark.parametrize(
    "error",
    [
        BrokenPipeError(),  # rich answers it with SystemExit
        OSError(28, "No space left on device"),
        UnicodeEncodeError("ascii", "│", 0, 1, "ordinal not in range"),
    ],
)
def test_nobody_waits_for_an_output_that_broke(error: Exception) -> None:
    class Broken(io.StringIO):
        def write(self, text: str) -> int:
            raise error

        def fileno(self) -> int:
            return os.open(os.devnull, os.O_WRONLY)

    with RunConsole(Console(file=Broken(), width=80)) as output:
        output.say("one")
        output.say("two")
        waiting = threading.Thread(target=output.flush, daemon=True)
        waiting.start()
        waiting.join(180)
        assert not waiting.is_alive()


def test_radt_itself_does_not_wait_for_a_terminal_that_stands_still(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(console_module, "WAITING_LINES", 10)
    unblock = threading.Event()

    class Stopped(io.StringIO):
        def write(self, text: str) -> int:
            assert unblock.wait(180)
            return super().write(text)

    stream = Stopped()
    with RunConsole(Console(file=stream, width=80, color_system=None)) as output:
        said = threading.Thread(
            target=lambda: [output.say(f"said {n}") for n in range(100)], daemon=True
        )
        said.start()
        said.join(180)
        waited = said.is_alive()
        unblock.set()
    assert not waited
    assert stream.getvalue().splitlines() == [f"said {n}" for n in range(100)]


def test_live_table_higher_than_the_terminal_shows_what_still_runs() -> None:
    runs = [
        RowProgress(f"{n:02}", "cnn", RunStatus.FINISHED if n < 5 else RunStatus.RUNNING)
        for n in range(12)
    ]
    lines = live_table(WorkloadProgress("net", "many", runs), 1, 80, 10).plain.splitlines()
    assert len(lines) == 9
    assert [line.split()[0] for line in lines[1:-1]] == ["05", "06", "07", "08", "09", "10", "11"]
    assert lines[-1] == "       … 5 more"
    shown = live_table(WorkloadProgress("net", "many", runs), 1, 80, 14).plain.splitlines()
    assert len(shown) == 13


def test_a_terminal_shows_long_lines_indented_and_a_pipe_shows_them_whole() -> None:
    words = "out of memory, tried to allocate " * 8
    tail = RowProgress("a", "big", RunStatus.OOM, words, "r", tail=[words])

    def shown(*, terminal: bool) -> list[str]:
        stream = io.StringIO()
        console = Console(file=stream, width=60, color_system=None, force_terminal=terminal)
        with RunConsole(console) as output:
            output.output(0, "a", words)
            output.relay(f"  b │ {words}")
            output.workload_ended(1, 1, WorkloadProgress("net", "one", [tail]))
            output.flush()
        return stream.getvalue().splitlines()

    on_terminal, piped = shown(terminal=True), shown(terminal=False)
    assert max(map(len, on_terminal)) <= 60
    begins = [line[:12] for line in on_terminal]
    assert begins[:2] == ["  a │ out of", "    │ to all"]
    assert "  b │ out of" in begins
    last = [line for line in on_terminal if line.startswith(" " * 12)]
    assert len(last) == 2
    assert last[-1].endswith(" …")
    assert [line.strip() for line in piped[:2]] == [f"a │ {words}".strip(), f"b │ {words}".strip()]
    assert len(piped) == 5


def test_a_run_that_its_user_stopped_is_told_without_its_last_lines() -> None:
    console, stream = plain_console()
    runs = [
        RowProgress("a", "one", RunStatus.KILLED, STOPPED, tail=["KeyboardInterrupt"]),
        RowProgress("b", "two", RunStatus.KILLED, "killed by SIGSEGV", tail=["last"]),
    ]
    with RunConsole(console) as output:
        output.workload_ended(1, 1, WorkloadProgress("net", "w", runs))
        output.flush()
    assert stream.getvalue().splitlines() == [
        "  1/1  w          2 runs    ✘ –",
        "       a  one  KILLED: stopped by the user",
        "       b  two  KILLED: killed by SIGSEGV",
        "            last",
    ]
