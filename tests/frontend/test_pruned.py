"""Runs of whose samples most were pruned are marked."""

from __future__ import annotations

from radt.frontend.catalog import read_catalog
from radt.frontend.pages.picker import nodes
from radt.frontend.search import search
from radt.frontend.selection import Level
from radt.store.pruning import Keep, prune_run
from radt.store.reader import StoreReader


def test_the_list_says_so_and_finds_them(demo, source):
    old, new = demo.run("a", "net", 2.0), demo.run("a", "net", 1.0)
    demo.workload("study", "old", [old])
    demo.workload("study", "new", [new])
    with StoreReader(demo.writer.address) as reader:
        prune_run(reader, demo.writer, old.run_id, Keep.SUMMARIES)
    catalog = read_catalog(source, "study")
    thinned, whole = nodes(catalog.workloads, Level.RUN)
    assert thinned["nodeProps"]["data-note"].endswith(" · thinned")
    assert "points kept" in thinned["nodeProps"]["data-title"]
    assert "thinned" not in whole["nodeProps"]["data-note"] + whole["nodeProps"]["data-title"]
    found = search(catalog, "pruned:kept", source.reader.params_of)
    assert [run.run_id for workload in found for run in workload.runs] == [old.run_id]
