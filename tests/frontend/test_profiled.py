"""Profiled runs are marked, and not among those that are shown unasked."""

from __future__ import annotations

import pytest

from radt.frontend.catalog import read_catalog
from radt.frontend.pages.board import facts
from radt.frontend.pages.picker import nodes
from radt.frontend.search import search
from radt.frontend.selection import Level
from radt.store.tags import PROFILED


def profiled_pair(demo):
    """A workload of which one run was under nsys; the ids of its runs."""
    runs = [demo.run(letter, "net", 2.0) for letter in "ab"]
    with demo.writer.transaction():
        demo.workload("study", "pair", runs)
        demo.writer.put_tags(runs[0].run_id, {PROFILED: "nsys"})
    return tuple(run.run_id for run in runs)


def test_they_are_shown_when_chosen_or_alone(demo, source):
    pair = profiled_pair(demo)
    assert read_catalog(source, "study").automatic() == pair

    solo = demo.run("a", "net", 1.0)
    demo.workload("study", "solo", [solo])
    source._hold_until = 0.0
    source.revision()
    catalog = read_catalog(source, "study")
    assert catalog.automatic() == (solo.run_id,)
    assert catalog.resolve(pair) == pair


def test_the_list_says_so_and_finds_them(demo, source):
    profiled_pair(demo)
    demo.workload("study", "solo", [demo.run("a", "net", 1.0)])
    catalog = read_catalog(source, "study")

    pair, solo = nodes(catalog.workloads, Level.RUN)
    first, second = pair["children"]
    assert pair["nodeProps"]["data-note"] == "profiled"
    assert first["nodeProps"]["data-note"].startswith("profiled · ")
    assert "profiled by nsys" in first["nodeProps"]["data-title"]
    assert "profiled" not in second["nodeProps"]["data-note"] + solo["nodeProps"]["data-note"]
    assert facts(catalog) == "2 workloads · 3 runs · 1 profiled"
    found = search(catalog, "profiled:nsys", source.reader.params_of)
    assert [run.short for workload in found for run in workload.runs] == ["pair a"]


@pytest.mark.parametrize("text", ["profiled:ncu", "profiled:none"])
def test_what_was_not_profiled_so_is_not_found(demo, source, text):
    profiled_pair(demo)
    assert search(read_catalog(source, "study"), text, source.reader.params_of) == ()
