"""Names and texts that MLflow takes, checked by MLflow's own validation."""

from __future__ import annotations

import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlflow.utils.validation import _validate_experiment_name, _validate_metric, _validate_param

from radt.delivery.mlflow import limits as names
from radt.delivery.mlflow.limits import (
    command_line_names,
    deliverable_params,
    deliverable_tags,
    mlflow_key,
    run_name,
    shortened,
    unique_keys,
    workload_name,
)
from radt.model import RunStatus
from radt.store.records import RunRecord


def test_examples_in_the_docstrings() -> None:
    failures, tried = doctest.testmod(names)
    assert tried
    assert failures == 0


@given(st.text(st.characters(codec=None), max_size=400))
def test_every_name_becomes_one_that_mlflow_takes(name: str) -> None:
    key = mlflow_key(name)
    _validate_metric(key, 1.0, 0, 0)
    _validate_param(key, "")
    assert key.encode("utf-8")
    assert mlflow_key(key) == key


@given(st.text(max_size=600))
def test_every_experiment_name_becomes_one_that_mlflow_takes(name: str) -> None:
    made = names.experiment_name(name)
    _validate_experiment_name(made)
    assert len(made) <= 256
    assert "\n" not in made


@pytest.mark.parametrize("name", ["loss", "val/top-1", "größe", "精度", "a b:c.d_e"])
def test_allowed_names_stay(name: str) -> None:
    assert mlflow_key(name) == name


def test_long_names_stay_apart() -> None:
    first, second = mlflow_key("x" * 300 + "a"), mlflow_key("x" * 300 + "b")
    assert first != second
    assert len(first) == len(second) == 250


@given(st.lists(st.sampled_from(["a?", "a!", "a_", "a_-2", "x" * 300, "y"]), max_size=8))
def test_keys_are_unique_and_stay_when_names_are_added(given_names: list[str]) -> None:
    keys = unique_keys(given_names)
    assert len(set(keys.values())) == len(set(given_names))
    shorter = unique_keys(given_names[:-1])
    assert shorter.items() <= keys.items()
    for key in keys.values():
        _validate_metric(key, 1.0, 0, 0)


def test_run_names_are_one_line() -> None:
    assert run_name("work\nload", "a", 'it\'s "it"\t!') == '(work load a) it\'s "it" !'
    assert run_name("", "a", "\n") == "run"
    assert workload_name("2") == "workload 2"
    assert len(run_name("w" * 400, "a", "n")) == 250


def test_shortened_only_if_needed() -> None:
    assert shortened("abc", 3) == "abc"
    assert len(shortened("x" * 100, 20)) == 20


def test_params_of_the_command_line_wait_for_the_end() -> None:
    params = {
        "File": "train.py",
        "Params": "data.csv --lr 1e-3 --amp size=3 'un balanced",
        "lr": "1e-3",
        "amp": "true",
        "size": "3",
        "arg1": "data.csv",
        "seed": "7",  # logged by the script itself
    }
    now = deliverable_params(params, ended=False)
    assert now == {"File": "train.py", "Params": params["Params"], "seed": "7"}
    assert deliverable_params(params, ended=True) == params


def test_command_line_names() -> None:
    assert command_line_names("--lr=1 -v 'a b=c'") >= {"lr", "v"}
    assert command_line_names("") == frozenset()


def test_long_and_undecodable_values_fit() -> None:
    params = deliverable_params({"long": "x" * 9000, "bytes": "\udcff\0"}, ended=True)
    assert len(params["long"]) == 6000
    assert params["long"].endswith("…")
    assert params["bytes"] == "?\ufffd"


def test_tags_tell_the_end_and_the_real_names() -> None:
    run = RunRecord("r", "w", "e", "1", "a", "n", 0, status=RunStatus.KILLED, end_reason="signal 9")
    tags = deliverable_tags(run, {"a?": "x" * 9000}, {})
    assert tags == {
        "a_": "x" * 7999 + "…",
        "radt.status": "KILLED",
        "radt.end_reason": "signal 9",
    }


def test_tag_has_the_exact_state_as_soon_as_it_is_the_last() -> None:
    ended = RunRecord("r", "w", "e", "1", "a", "n", 0, status=RunStatus.OOM, exit_code=1)
    assert deliverable_tags(ended, {}, {}) == {"radt.status": "OOM", "radt.exit_code": "1"}
    running = RunRecord("r", "w", "e", "1", "a", "n", 0, status=RunStatus.RUNNING)
    assert deliverable_tags(running, {}, {}) == {}
