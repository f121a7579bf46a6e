"""What torch and torchprof ask of the training process, and that it understands them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from radt.errors import UsageError
from radt.home import RunDir
from radt.listeners import pytorch
from radt.listeners.api import ProfiledRun, options_of
from radt.listeners.pytorch import TorchMetrics, TorchProfiler
from radt.listeners.registry import check_options, load
from radt.model import ListenerChoice
from radt.run import torch_metrics, torch_options
from radt.run.torch_options import TorchWishes, TraceOptions


def profiled(folder: Path, *options: str) -> ProfiledRun:
    return ProfiledRun("run", "label", folder, options_of(options))


def wishes(environment: Mapping[str, str]) -> TorchWishes:
    return TorchWishes.find(None, (), RunDir(Path()), environment)


def test_both_are_installed_and_work_everywhere() -> None:
    found = load().profilers
    assert (found["torch"], found["torchprof"]) == (TorchMetrics, TorchProfiler)
    assert TorchMetrics.probe().available
    assert TorchProfiler.probe().available
    assert not TorchMetrics.disturbs
    assert TorchProfiler.disturbs
    assert not TorchProfiler.takes_gpu_counters


def test_metrics_reach_the_process(tmp_path: Path) -> None:
    run = profiled(tmp_path)
    assert TorchMetrics().prefix(run) == ()
    assert wishes(TorchMetrics().environment(run)) == TorchWishes(metrics=True)


def test_trace_options_reach_the_process(tmp_path: Path) -> None:
    folder = tmp_path / "a folder:1"
    plain = TorchProfiler().environment(profiled(folder))
    assert wishes(plain) == TorchWishes(trace=TraceOptions(folder))
    choice = ListenerChoice.parse("torchprof:epochs=2-3,7:stack:shapes:memory:steps=5")
    check_options(TorchProfiler, choice.options)
    chosen = TorchProfiler().environment(profiled(folder, *choice.options))
    assert wishes(chosen).trace == TraceOptions(
        folder, (range(2, 4), range(7, 8)), 5, memory=True, stack=True, shapes=True
    )


@pytest.mark.parametrize(
    "option",
    ["epochs", "epochs=x", "epochs=3-2", "epochs=1,", "epochs=٣", "steps", "steps=0", "stack=1"],
)
def test_options_that_make_no_sense(option: str) -> None:
    with pytest.raises(UsageError, match=option.partition("=")[0]):
        check_options(TorchProfiler, [option])


def test_process_and_listener_agree() -> None:
    for name in ("METRICS_VARIABLE", "TRACE_VARIABLE", "TRACE_OPTIONS_VARIABLE"):
        assert getattr(pytorch, name) == getattr(torch_options, name)
    names = {TorchMetrics.name, TorchProfiler.name}
    assert names == set(torch_options.INSIDE_WORDS)
    declared = {
        (one.name, one.unit, one.scope, one.kind, one.method) for one in TorchMetrics.metrics()
    }
    recorded = {
        (one.metric, one.unit, one.scope, one.kind, one.method) for one in torch_metrics.CUDA_KEYS
    }
    assert recorded == declared
