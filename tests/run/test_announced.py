"""A script says which run it is, and names its runs so that they can be told apart."""

from __future__ import annotations

import re

from radt.model import short_id
from radt.store.writer import StoreWriter
from tests.run.conftest import Alone

_SCRIPT = "import radt\nwith radt.Run(listeners='none') as run:\n    print(run.id)\n"


def test_a_line_at_the_start_and_one_at_the_end(alone: Alone) -> None:
    out, err = alone.run(_SCRIPT, "--lr", "0.1", RADT_QUIET="")
    begun, ended = err.splitlines()
    head = f"radt: run {short_id(out.strip())} (script0 lr=0.1 #1) "
    assert begun == f"{head}is recorded in {alone.home}"
    assert re.fullmatch(re.escape(head) + r"FINISHED in .+; see radt dashboard", ended)


def test_a_data_folder_of_its_own_is_named_for_the_dashboard(alone: Alone) -> None:
    source = _SCRIPT.replace("listeners=", "home='mine', listeners=")
    _, err = alone.run(source, RADT_QUIET="")
    begun, ended = err.splitlines()
    assert begun.endswith(" is recorded in mine")
    assert ended.endswith("; see radt dashboard --home mine")


def test_quiet_by_variable_and_by_settings_file(alone: Alone) -> None:
    assert alone.run(_SCRIPT, RADT_QUIET="1")[1] == ""
    (alone.folder / "radt.toml").write_text("quiet = true\n", encoding="utf-8")
    assert alone.run(_SCRIPT, RADT_QUIET="")[1] == ""
    assert len(alone.run(_SCRIPT, RADT_QUIET="off")[1].splitlines()) == 2


def test_runs_of_a_script_have_its_arguments_and_a_number(alone: Alone) -> None:
    """Names that the user gives stay as they are."""
    source = _SCRIPT.replace("listeners=", "experiment='e', listeners=")
    named = source.replace("Run(", "Run('mine', ")
    for text, *arguments in (
        (source, "--lr", "0.1"),
        (source, "--lr", "0.1"),
        (named,),
        (source, "--amp", "/data/images/tiny"),
    ):
        alone.run(text, *arguments)
    names = [run.name for run in alone.reader.runs()]
    assert names == ["script0 lr=0.1 #1", "script1 lr=0.1 #2", "mine", "script3 amp=tiny #3"]


def test_a_number_is_not_given_again_while_a_later_run_is_there(alone: Alone) -> None:
    source = _SCRIPT.replace("listeners=", "experiment='e', listeners=")
    for _ in range(3):
        alone.run(source)
    with StoreWriter(alone.home / "radt.db") as writer:
        first = min(alone.reader.runs(), key=lambda run: run.created_ns)
        writer.update_run(first.run_id, name="renamed")
        assert writer.numbered_name("x", "e") == "x #4"
        assert writer.numbered_name("x", "new") == "x #1"
