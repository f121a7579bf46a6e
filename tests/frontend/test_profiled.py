"""Profiled runs are marked, and found."""

from __future__ import annotations

from radt.frontend.pages.select import answer
from radt.frontend.view import View
from radt.tags import PROFILED


def test_the_list_says_so(demo, source):
    runs = [demo.run(letter, "net", 2.0) for letter in "ab"]
    demo.workload("study", "pair", runs)
    demo.writer.put_tags(runs[0].run_id, {PROFILED: "nsys"})
    pane = answer(source, View())["panes"]["runs"]
    place = [column["key"] for column in pane["columns"]].index("note")
    assert [row["cells"][place] for row in pane["rows"]] == ["profiled by nsys", ""]
    assert "profiled by nsys" in pane["rows"][0]["title"]
    found = answer(source, View(search="profiled:nsys"))["panes"]["runs"]
    assert [row["id"] for row in found["rows"]] == [runs[0].run_id[:12]]
