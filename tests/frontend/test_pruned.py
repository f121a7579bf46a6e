"""Runs of whose samples most were pruned are marked, and found."""

from __future__ import annotations

from radt.frontend.pages.select import answer
from radt.frontend.view import View
from radt.store.pruning import Keep, prune_run
from radt.store.reader import StoreReader


def test_the_list_says_so_and_finds_them(demo, source):
    old, new = demo.run("a", "net", 2.0), demo.run("a", "net", 1.0)
    demo.workload("study", "old", [old])
    demo.workload("study", "new", [new])
    with StoreReader(demo.writer.address) as reader:
        prune_run(reader, demo.writer, old.run_id, Keep.SUMMARIES)
    pane = answer(source, View())["panes"]["runs"]
    place = [column["key"] for column in pane["columns"]].index("note")
    assert [row["cells"][place] for row in pane["rows"]] == ["", "thinned"]
    assert "points kept" in pane["rows"][1]["title"]
    found = answer(source, View(search="pruned:kept"))["panes"]["runs"]
    assert [row["id"] for row in found["rows"]] == [old.run_id[:12]]
