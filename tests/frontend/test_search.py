"""The search field: what terms mean, what cannot be read, what is found."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radt.frontend.search.find import find, recent
from radt.frontend.search.query import MAX_TERMS, Operator, parse
from radt.model import RunStatus
from radt.tags import PROFILED


def found(source, text, *statuses):
    """Names of the runs that a search finds."""
    return [run.short for run in find(source, text, frozenset(statuses)).runs or ()]


@pytest.mark.parametrize(
    ("text", "key", "operator", "values", "number", "negated"),
    [
        ("resnet", "", Operator.HAS, ("resnet",), None, False),
        ("-resnet", "", Operator.HAS, ("resnet",), None, True),
        ('"two words"', "", Operator.HAS, ("two words",), None, False),
        ('"a:b"', "", Operator.HAS, ("a:b",), None, False),
        ("Model:ResNet", "model", Operator.HAS, ("resnet",), None, False),
        ('name:"two words"', "name", Operator.HAS, ("two words",), None, False),
        ('"batch size">=64', "batch size", Operator.AT_LEAST, ("64",), 64.0, False),
        ("lr<1e-3", "lr", Operator.LESS, ("1e-3",), 0.001, False),
        ("-lr>0.1", "lr", Operator.MORE, ("0.1",), 0.1, True),
        ("lr!=0.1", "lr", Operator.IS_NOT, ("0.1",), None, False),
        ("status:failed,oom", "status", Operator.HAS, ("failed", "oom"), None, False),
        ('note="a,b"', "note", Operator.IS, ("a,b",), None, False),
        ("Name~^CNN-[a-z]+,$", "name", Operator.MATCHES, ("^CNN-[a-z]+,$",), None, False),
        ('-name~"a b"', "name", Operator.MATCHES, ("a b",), None, True),
        ("path:~/data", "path", Operator.HAS, ("~/data",), None, False),
        ("path=~/data", "path", Operator.IS, ("~/data",), None, False),
        ("~/data", "", Operator.HAS, ("~/data",), None, False),
        ("url:s3://bucket", "url", Operator.HAS, ("s3://bucket",), None, False),
        ("duration>10m", "duration", Operator.MORE, ("10m",), 600.0, False),
        ("duration>1h30m", "duration", Operator.MORE, ("1h30m",), 5400.0, False),
        ("age<2w", "age", Operator.LESS, ("2w",), 14 * 86400.0, False),
    ],
)
def test_terms(text, key, operator, values, number, negated):
    (term,) = parse(text).terms
    assert (term.key, term.operator, term.values) == (key, operator, values)
    assert (term.number, term.negated, term.typed) == (number, negated, text)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("lr>", "expected a value after >"),
        ("lr>fast", "“fast” is not a number"),
        ("lr>nan", "not a number"),
        (">=64", "expected a name before >="),
        ("lr==0.1", "unknown operator =="),
        ("lr=>0.1", "unknown operator =>"),
        ("name!~cnn", "unknown operator !~"),
        ("name~(", "“(” is not a regular expression"),
        ("age~2", "age is a time"),
        ("OR", "write key:a,b for “or”"),
        ('"open', "quote is not closed"),
        ('""', "term is empty"),
        ("age<2", "needs a unit"),
        ("duration>soon", "not a duration"),
    ],
)
def test_what_cannot_be_read_is_said_and_the_rest_applied(text, cause):
    query = parse(f"a:before {text}")
    assert [term.typed for term in query.terms] == ["a:before"]
    (problem,) = query.problems
    assert problem.typed == text
    assert cause in problem.cause


def test_a_search_has_an_end():
    query = parse("x " * (MAX_TERMS + 5))
    assert len(query.terms) == MAX_TERMS
    assert len(query.problems) == 1


@given(st.text(max_size=60))
def test_any_text_is_read(text):
    query = parse(text)
    assert bool(text.strip()) == bool(query.terms or query.problems)


FOUND = [
    ("three", ["three a", "three b", "three c"]),
    ("status:failed", ["mix b"]),
    ("STATUS:Finished mix", ["mix a"]),
    ("model:cnn-large", ["mix b"]),
    ("cnn-large", ["mix b"]),
    ("model:large", ["mix b"]),
    ("model=large", []),
    ("name~^CNN-.*e$", ["mix b"]),
    ("-command~small workload~^mi", ["mix b"]),
    ("batch-size~^6", ["solo", "three a", "three b", "three c", "mix a", "mix b"]),
    ("model!=cnn-small", ["mix b"]),
    ("-model:cnn-small", ["mix b"]),
    ("-model:cnn-small,cnn-large", []),
    ("batch-size:64 workload:solo", ["solo"]),
    ("batch-size:6", []),
    ("batch-size=64.0 workload:solo", ["solo"]),
    ("batch-size>=64 batch-size<64.5 workload:solo", ["solo"]),
    ("batch-size>64", []),
    ("model>1", []),
    ("device:cpu cnn-large", ["mix b"]),
    ("workload:mix,solo letter:a", ["solo", "mix a"]),
    ("duration>1m workload:three", ["three a", "three b", "three c"]),
    ("duration<30s", ["solo"]),
    ("age<1s", []),
    ("age>1d workload:solo", ["solo"]),
    ('"--model cnn-large"', ["mix b"]),
    ("reason:exit", ["mix b"]),
    ("team:red", ["mix b"]),
    ("red", ["mix b"]),
    ("experiment:quick workload:solo", ["solo"]),
    ("experiment:other", []),
    ("no-such-word", []),
]


def test_what_is_found(demo, source):
    demo.quickstart()
    demo.writer.put_tags(demo.run_ids["mix b"], {"team": "red", "radt.hidden": "yes"})
    for text, expected in FOUND:
        assert found(source, text) == expected, text
        assert find(source, text).problems == (), text
    assert not found(source, "hidden=yes")


def test_numbers_of_workloads_are_no_parts_of_others(demo, source):
    for label in ("1", "12"):
        demo.workload("study", label, [demo.run("a", "net", 1.0)])
    assert found(source, "workload:1") == ["1"]
    assert found(source, "workload:1,12") == ["1", "12"]


def test_ids_are_found_by_their_beginnings(demo, source):
    run = demo.run("a", "net", 1.0, run_id="12e4" + "0" * 28)
    demo.workload("study", "one", [run])
    assert found(source, "run:12e4") == found(source, "12e400") == ["one"]


def test_all_experiments_are_searched_and_counted(demo, source):
    demo.quickstart()
    demo.quickstart("second")
    result = find(source, "cnn-large")
    assert [run.record.experiment for run in result.runs] == ["second", "quickstart"]
    assert find(source, "").runs is None
    assert find(source, "").counts(None) == {RunStatus.FINISHED: 10, RunStatus.FAILED: 2}


def test_states_are_chosen_among_what_words_find(demo, source):
    demo.quickstart()
    result = find(source, "mix", frozenset({RunStatus.FAILED}))
    assert len(result.runs) == 1
    assert result.counts(None) == {RunStatus.FINISHED: 1, RunStatus.FAILED: 1}
    assert find(source, "solo", frozenset({RunStatus.FAILED})).runs == ()


def test_what_no_run_has_is_said(demo, source):
    demo.quickstart()
    (problem,) = find(source, "modl:x solo").problems
    assert problem.typed == "modl:x"
    assert "did you mean model?" in problem.cause


@pytest.mark.parametrize("text", ["profiled:ncu", "profiled:none"])
def test_what_was_not_profiled_so_is_not_found(demo, source, text):
    runs = [demo.run(letter, "net", 2.0) for letter in "ab"]
    demo.workload("study", "pair", runs)
    demo.writer.put_tags(runs[0].run_id, {PROFILED: "nsys"})
    assert found(source, "profiled:nsys") == ["pair a"]
    assert found(source, text) == []


@pytest.mark.parametrize(("status", "word"), [("OOM", "oom"), ("TIMEOUT", '"timed out"')])
def test_states_are_found_by_their_names_and_words(demo, source, status, word):
    demo.workload("study", "one", [demo.run("a", "net", 2.0, status=RunStatus(status))])
    assert found(source, f"status:{word}") == found(source, f"status:{status}") == ["one"]


def test_how_long_a_run_is_running_counts(demo, source):
    demo.workload("study", "now", [demo.run("a", "net", 9.0, status=RunStatus.RUNNING)])
    demo.workload("study", "waits", [demo.run("a", "net", 9.0, status=RunStatus.SCHEDULED)])
    demo.writer.update_run(demo.run_ids["waits a"], started_ns=None)
    assert found(source, "duration>1h workload:now") == ["now"]
    assert found(source, "duration>0 workload:waits") == []


def test_results_are_kept_until_something_is_written(demo, source):
    demo.quickstart()
    source.revision()
    first = find(source, "solo")
    assert find(source, "solo") is first
    for number in range(200):
        find(source, f"solo {number}")
    assert len(recent(source)._results) <= 64
    source._hold_until = 0.0
    demo.quickstart("second")
    source.revision()
    assert len(find(source, "solo").runs) == 2


def test_spaces_may_surround_a_comparison():
    query = parse('accuracy.max > 0.93 lr<1e-3 state = failed "a <" b')
    assert [(term.key, str(term.operator), term.values) for term in query.terms] == [
        ("accuracy.max", ">", ("0.93",)),
        ("lr", "<", ("1e-3",)),
        ("state", "=", ("failed",)),
        ("", ":", ("a <",)),
        ("", ":", ("b",)),
    ]


def test_metrics_are_searched_by_what_summarises_them(demo, source):
    demo.quickstart()
    reader = source.reader
    values = {
        run_id: one
        for run_id in demo.run_ids.values()
        for one in reader.summary([run_id])
        if one.series.metric == "accuracy"
    }
    limit = sorted(one.maximum for one in values.values())[2]
    shorts = {run_id: short.replace("solo a", "solo") for short, run_id in demo.run_ids.items()}
    over = {shorts[run_id] for run_id, one in values.items() if one.maximum > limit}
    assert len(over) == len(values) - 3
    assert set(found(source, f"Accuracy.max > {limit!r}")) == over
    last = next(iter(values.values()))
    assert shorts[last.series.run_id] in found(source, f"accuracy = {last.last!r}")
    assert found(source, "accuracy.max > 0 state = failed") == ["mix b"]
    (problem,) = find(source, "acuracy.max>0").problems
    assert "did you mean accuracy.max?" in problem.cause
