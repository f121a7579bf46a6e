"""Writing statuses into a sweep changes its entries and not one byte more."""

from __future__ import annotations

import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from radt.errors import StatusError
from radt.experiment import rewriting
from radt.experiment.atomic import Version
from radt.experiment.devices import Machine
from radt.experiment.lock import ExperimentLock
from radt.experiment.status import RowStatus
from radt.experiment.sweep import SweepFile
from radt.experiment.sweep_writer import SweepWriter
from radt.listeners.api import Registry
from tests.experiment.sweep_kit import ORIGINAL, SMALL, SweepBench

A, B, C, D = (f"--lr {lr} --bs {bs}" for lr in ("0.1", "0.01") for bs in (32, 64))
#: The runs of the generated sweeps, in the order of their positions.
RUNS = [f"--lr {lr} --name {name}" for lr in ("0.1", "0.01") for name in ("a", "'b c'")]


@pytest.fixture
def sweep(folder: Path, cpu_only: Machine, registry: Registry) -> SweepBench:
    return SweepBench(folder / "sweep.yaml", cpu_only, registry).write(SMALL)


@dataclass(frozen=True)
class Entry:
    """A status in a sweep, of the run at this position; ``written`` is its value as YAML."""

    position: int
    number: int
    written: str
    comment: str

    @property
    def line(self) -> str:
        return f"  {self.number}: {self.written}{self.comment}"


@dataclass(frozen=True)
class Written:
    """A sweep put together by the test, which knows where everything stands.

    ``status`` are the lines of its statuses: entries and comments; None if it has none.
    """

    before: list[str]
    status: list[Entry | str] | None
    after: list[str]
    newline: str
    ends: bool

    @property
    def entries(self) -> list[Entry]:
        return [one for one in self.status or () if isinstance(one, Entry)]

    @property
    def text(self) -> str:
        return self._assembled(self.status)

    def expected(self, changes: dict[int, str]) -> str:
        """The text after these runs, by position, got these entries."""
        used = {one.number for one in self.entries}
        free = (number for number in range(100) if number not in used)
        there = {one.position for one in self.entries}
        numbers = {position: next(free) for position in range(1, 5) if position not in there}
        lines: list[Entry | str] = [
            f'  {one.number}: "{changes[one.position]}"{one.comment}'
            if isinstance(one, Entry) and one.position in changes
            else one
            for one in self.status or ()
        ]
        last = max(
            (i for i, one in enumerate(self.status or ()) if isinstance(one, Entry)), default=-1
        )
        new = [
            f'  {number}: "{changes[position]}"'
            for position, number in numbers.items()
            if position in changes
        ]
        lines[last + 1 : last + 1] = new
        if self.status is None:
            whole = "".join(f"{line}\n" for line in [*self.before, *self.after, "status:", *new])
            return whole.replace("\n", self.newline)
        return self._assembled(lines)

    def _assembled(self, status: list[Entry | str] | None) -> str:
        lines = [one.line if isinstance(one, Entry) else one for one in status or ()]
        head = [] if status is None else ["status:"]
        text = "\n".join([*self.before, *head, *lines, *self.after]) + "\n" * self.ends
        return text.replace("\n", self.newline)


@st.composite
def sweeps(draw: st.DrawFn) -> Written:
    """Any way to write one sweep: order, comments, quotes, folding, line ends, indentation."""
    comments = st.sampled_from(["", "", "  # a: note", " #"])
    noise = st.lists(st.sampled_from(["", "# note: 'x'", "   # - {"]), max_size=2)
    blocks = [
        "file: train.py",
        "devices: cpu",
        "params: ''",
        draw(
            st.sampled_from(
                [
                    "parameters:\n  lr: {values: [0.1, 0.01]}\n  name:\n    values: [a, b c]",
                    "parameters:\n    lr:\n        values:\n        - 0.1 # c\n        - 0.01\n"
                    "    name: {value: [a,\n       'b c']}",
                    '"parameters": {lr: [0.1, 0.01], "name": {values: ["a", "b\\x20c"]}}',
                ]
            )
        ),
    ]
    blocks = [
        line
        for block in draw(st.permutations(blocks))
        for line in (*draw(noise), block + draw(comments))
    ]
    numbers = draw(st.permutations(range(8)))
    status: list[Entry | str] | None = None
    if draw(st.booleans()):
        status = []
        for position in draw(st.lists(st.integers(1, 4), unique=True)):
            state = draw(st.sampled_from(["FINISHED", "RUNNING", "FAILED"]))
            text = f"{state} {'0123456789abcdef' * 2} ({RUNS[position - 1]})"
            value = draw(
                st.sampled_from(
                    [
                        text,
                        f'"{text}"',
                        "'" + text.replace("'", "''") + "'",
                        text.replace(" (", "\n    ("),
                        f"!!str {text}",
                    ]
                )
            )
            status += [*draw(noise), Entry(position, numbers[position], value, draw(comments))]
        if any(isinstance(one, Entry) for one in status):
            status += draw(noise)
    cut = draw(st.integers(0, len(blocks)))
    return Written(
        [draw(st.sampled_from(["# head", "---", ""])), *blocks[:cut]],
        status,
        blocks[cut:],
        draw(st.sampled_from(["\n", "\r\n"])),
        draw(st.booleans()),
    )


reports = st.sampled_from(
    ["RUNNING", "FINISHED", "FINISHED 2/3", "KILLED 1/2: stopped: by (the) user", "OOM: 'gpu' #1"]
)


@settings(deadline=None, max_examples=60)
@given(sweeps(), st.dictionaries(st.integers(1, 4), reports, min_size=1))
def test_write_back_keeps_every_other_byte(file: Written, changes: dict[int, str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "s.yaml"
        path.write_bytes(file.text.encode())

        SweepFile.read(path).writer().set_many(
            {position: RowStatus(text, "1d") for position, text in changes.items()}
        )

        after = path.read_bytes().decode()
    entries: dict[int, str] = {}
    for position, text in changes.items():
        state, _, reason = text.partition(": ")
        entries[position] = f"{state} 1d ({RUNS[position - 1]})" + (f": {reason}" if reason else "")
    assert after == file.expected(entries)
    before_data, after_data = yaml.safe_load(file.text), yaml.safe_load(after)
    assert set(entries.values()) <= set(after_data.pop("status").values())
    before_data.pop("status", None)
    assert after_data == before_data


@settings(deadline=None, max_examples=15)
@given(sweeps(), st.dictionaries(st.integers(1, 4), reports, min_size=1))
def test_one_by_one_comes_to_the_same_as_all_at_once(
    file: Written, changes: dict[int, str]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / name for name in ("a.yaml", "b.yaml")]
        for path in paths:
            path.write_bytes(file.text.encode())
        statuses = {position: RowStatus(text, "1d") for position, text in changes.items()}
        one, other = (SweepFile.read(path).writer() for path in paths)

        one.set_many(statuses)
        for position in sorted(statuses):
            other.set_many({position: RowStatus("RUNNING", "x")})
        for position, status in statuses.items():
            other.set_many({position: status})

        assert paths[0].read_bytes() == paths[1].read_bytes()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param("status: {}  # none yet\n", "status:  # none yet\n{new}", id="braces"),
        pytest.param("status:\n", "status:\n{new}", id="nothing"),
        pytest.param("status: ~ # c", "status: # c\n{new}", id="null at the end of the file"),
        pytest.param(
            'status: {3: "FINISHED x (--a 1)", 7: null}\n',
            'status:\n  3: "FINISHED x (--a 1)"\n  7: ""\n{new}',
            id="entries in braces",
        ),
        pytest.param(
            "status:\n      4: |-\n        FINISHED x (--a 1)\n\n# end\n",
            "status:\n      4: |-\n        FINISHED x (--a 1)\n    {new}\n\n# end\n",
            id="a block of text, deeper",
        ),
        pytest.param("...\n", "status:\n{new}...\n", id="before the end of the document"),
        pytest.param("# end", "# end\nstatus:\n{new}", id="below the last comment"),
    ],
)
def test_other_ways_to_write_statuses(sweep: SweepBench, before: str, after: str) -> None:
    sweep.write(SMALL + before)

    sweep.record({A: "FINISHED"})

    line = f'  0: "FINISHED abc ({A})"'
    end = "\n" if "{new}\n" not in after and not before.startswith("status: ~") else ""
    assert sweep.text == SMALL + after.replace("{new}", line + end)
    assert sweep.runs()[A].status == "FINISHED"


def test_an_indented_sweep_stays_one(sweep: SweepBench) -> None:
    sweep.write("".join(f"   {line}\n" for line in SMALL.splitlines()))

    sweep.record({B: "FINISHED"})

    assert sweep.text.endswith(f'\n   status:\n     1: "FINISHED abc ({B})"\n')
    assert sweep.runs()[B].status == "FINISHED"


def test_the_originals_file_keeps_all_that_was_not_run(
    sweep: SweepBench, two_gpus: Machine
) -> None:
    sweep.machine = two_gpus
    sweep.write(ORIGINAL)
    rest = "--optimiser-name stochastic-gradient-descent"

    sweep.record({f"--batch-size 64 --lr 0.1 {rest}": "FINISHED"})

    assert sweep.text == ORIGINAL + (f'  2: "FINISHED abc (--batch-size 64 --lr 0.1 {rest})"\n')
    assert "FINISHED" in yaml.safe_load(sweep.text)["status"][2], "the original reads it, too"


def test_texts_are_made_fit_for_a_line(sweep: SweepBench) -> None:
    sweep.record({A: "FAILED: one\n  two\x1b[31m\u2028" + "é" * 200}, run_id="abc\n")

    (text,) = sweep.statuses.values()
    assert text.startswith(f"FAILED abc ({A}): one two?[31m") and text.endswith("é…")
    assert len(sweep.text.splitlines()) == len(SMALL.splitlines()) + 2


def test_what_is_edited_meanwhile_stays(sweep: SweepBench) -> None:
    file = sweep.file()
    file.plan(sweep.machine, sweep.registry)
    writer = file.writer()
    writer.set_many({1: RowStatus("RUNNING", "abc")})

    sweep.write("# edited\n" + sweep.text.replace("[0.1, 0.01]", "[0.3, 0.01, 0.1]"))
    writer.set_many({1: RowStatus("FINISHED"), 4: RowStatus("RUNNING", "def")})

    assert sweep.text.startswith("# edited\n# which")
    runs = sweep.runs()
    assert (runs[A].status, runs[A].run_id, runs[D].run_id) == ("FINISHED", "abc", "def")
    assert len(runs) == 6


def test_a_run_that_was_removed_meanwhile_keeps_its_status(sweep: SweepBench) -> None:
    writer = sweep.file().writer()

    sweep.write(SMALL.replace("0.1, ", ""))
    writer.set_many({1: RowStatus("FINISHED", "abc")})

    assert sweep.statuses == {0: f"FINISHED abc ({A})"}


def test_while_it_is_no_yaml_statuses_wait(sweep: SweepBench) -> None:
    writer = sweep.file().writer()
    broken = SMALL + 'name: "half a line\n'
    sweep.write(broken)

    with pytest.raises(StatusError, match=r"line 10: this is not YAML") as caught:
        writer.set_many({1: RowStatus("RUNNING", "abc")})
    assert sweep.text == broken
    assert "it was left alone" in str(caught.value)

    sweep.write(SMALL)
    writer.set_many({2: RowStatus("RUNNING", "def")})
    assert sweep.statuses == {0: f"RUNNING abc ({A})", 1: f"RUNNING def ({B})"}
    text = sweep.text
    writer.flush()
    assert sweep.text == text


def test_a_file_that_is_gone_is_written_when_it_is_back(sweep: SweepBench) -> None:
    writer = sweep.file().writer()
    sweep.path.unlink()

    with pytest.raises(StatusError, match="cannot be read"):
        writer.set_many({1: RowStatus("FINISHED", "abc")})
    sweep.write(SMALL)
    writer.flush()

    assert sweep.statuses == {0: f"FINISHED abc ({A})"}


def test_a_write_in_between_is_seen(sweep: SweepBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody saves the file between our reading and our writing, once."""
    writer = sweep.file().writer()
    replace, edits = rewriting.replace_if_unchanged, ["# saved\n"]

    def edited_first(path: Path, content: bytes, version: Version) -> bool:
        if edits:
            sweep.write(edits.pop() + sweep.text)
        return replace(path, content, version)

    monkeypatch.setattr(rewriting, "replace_if_unchanged", edited_first)
    writer.set_many({1: RowStatus("FINISHED", "abc")})

    assert sweep.text == f'# saved\n{SMALL}status:\n  0: "FINISHED abc ({A})"\n'


def test_a_file_that_never_rests_is_given_up(
    sweep: SweepBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = sweep.file().writer()
    monkeypatch.setattr(rewriting, "replace_if_unchanged", lambda *_: False)

    with pytest.raises(StatusError, match="changes all the time"):
        writer.set_many({1: RowStatus("FINISHED", "abc")})


def test_a_folder_without_room_leaves_the_file_as_it_was(
    sweep: SweepBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = sweep.file().writer()

    def full(*_: object) -> bool:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(rewriting, "replace_if_unchanged", full)
    with pytest.raises(StatusError, match="No space left on device"):
        writer.set_many({1: RowStatus("FINISHED", "abc")})
    assert sweep.text == SMALL

    monkeypatch.undo()
    writer.flush()
    assert sweep.statuses == {0: f"FINISHED abc ({A})"}


def test_a_link_is_followed(sweep: SweepBench, tmp_path: Path) -> None:
    link = tmp_path / "link.yaml"
    link.symlink_to(sweep.path)

    writer = SweepFile.read(link).writer()
    writer.set_many({1: RowStatus("FINISHED", "abc")})

    assert link.is_symlink()
    assert sweep.statuses == {0: f"FINISHED abc ({A})"}


def test_what_a_killed_runner_left_is_removed(sweep: SweepBench) -> None:
    leftover = sweep.path.with_name(".sweep.yaml.radt-new")
    leftover.write_text("half", encoding="utf-8")

    with ExperimentLock(sweep.path):
        sweep.file().writer()

    assert not leftover.exists()


def test_threads_write_through_each_other(sweep: SweepBench) -> None:
    writer = sweep.file().writer()
    start = threading.Barrier(4)

    def report(line: int) -> None:
        start.wait()
        for state in ("RUNNING", "FINISHED"):
            writer.set_many({line: RowStatus(state, f"run{line}")})

    threads = [threading.Thread(target=report, args=(line,)) for line in (1, 2, 3, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sweep.statuses == {
        number: f"FINISHED run{number + 1} ({params})" for number, params in enumerate((A, B, C, D))
    }


def test_a_run_of_another_plan_is_refused(sweep: SweepBench) -> None:
    writer: SweepWriter = sweep.file().writer()

    with pytest.raises(StatusError, match="had no run 5"):
        writer.set_many({5: RowStatus("RUNNING")})
    assert sweep.text == SMALL


def test_an_entry_in_the_way_moves_the_new_one(sweep: SweepBench) -> None:
    """Somebody has written an entry by hand, under the number that a run was to have."""
    writer = sweep.file().writer()
    foreign = '  0: "FINISHED x (--lr 9 --bs 9)"\n'
    sweep.write(f"{SMALL}status:\n{foreign}")

    writer.set_many({1: RowStatus("RUNNING", "abc")})
    writer.set_many({1: RowStatus("FINISHED")})

    assert sweep.text == f'{SMALL}status:\n{foreign}  0a: "FINISHED abc ({A})"\n'
    assert sweep.runs()[A].status == "FINISHED"


def test_a_file_that_would_be_broken_is_left_alone(sweep: SweepBench) -> None:
    """Without the anchor in its status the name would stand for nothing."""
    text = f'{SMALL}status:\n  0: &x "RUNNING abc ({A})"\nname: *x\n'
    writer = sweep.write(text).file().writer()

    with pytest.raises(StatusError, match="undefined alias"):
        writer.set_many({1: RowStatus("FINISHED")})
    assert sweep.text == text
