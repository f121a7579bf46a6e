"""A TensorBoard `SummaryWriter` of PyTorch whose scalars are also recorded in the run."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from radt.integrations.hooks import call_after, needs
from radt.integrations.recorder import TrainingRecorder

with needs("tensorboard", __name__):
    from torch.utils import tensorboard as torch_tensorboard

__all__ = ["SummaryWriter"]

#: Callers to ignore: these libraries' values arrive through their integrations, and PyTorch's
#: ``add_hparams`` writes its metrics with a separate writer.
_OTHERS = {
    *("lightning", "lightning_fabric", "pytorch_lightning", "transformers", "accelerate", "torch")
}
#: Stack frames from `_is_of_script` to the writer's caller: an action, its guard, the method.
_FRAMES_BETWEEN = 4

_recorder = TrainingRecorder()


class SummaryWriter(torch_tensorboard.SummaryWriter):
    """Write for TensorBoard like PyTorch's class, and record scalars in the run.

    ``add_scalar`` and ``add_scalars`` (``main/name``) log values at their global step;
    ``add_hparams`` records parameters and its metrics. Everything else goes to TensorBoard only.
    """


def record(writer_class: type) -> None:
    """Make a writer class record its values in the run as well; for PyTorch's, see `autolog`."""
    for name, action in (
        ("__init__", _open),
        ("add_scalar", _add_scalar),
        ("add_scalars", _add_scalars),
        ("add_hparams", _add_hparams),
    ):
        call_after(writer_class, name, action)


def _is_of_script(writer: object) -> bool:
    if isinstance(writer, SummaryWriter):
        return True
    caller = sys._getframe(_FRAMES_BETWEEN).f_globals.get("__name__", "")  # noqa: SLF001
    return caller.partition(".")[0] not in _OTHERS


def _open(writer: object, *args: Any, **kwargs: Any) -> None:
    if _is_of_script(writer):
        _recorder.open()


def _add_scalar(
    writer: object, tag: str, scalar_value: Any, global_step: Any = None, *_: Any, **__: Any
) -> None:
    if _is_of_script(writer):
        _recorder.log({tag: scalar_value}, global_step)


def _add_scalars(
    writer: object,
    main_tag: str,
    tag_scalar_dict: Mapping[str, Any],
    global_step: Any = None,
    *_: Any,
    **__: Any,
) -> None:
    if _is_of_script(writer):
        values = {f"{main_tag}/{tag}": value for tag, value in tag_scalar_dict.items()}
        _recorder.log(values, global_step)


def _add_hparams(
    writer: object,
    hparam_dict: Mapping[str, Any],
    metric_dict: Mapping[str, Any],
    hparam_domain_discrete: Any = None,
    run_name: Any = None,
    global_step: Any = None,
) -> None:
    if _is_of_script(writer):
        _recorder.log_params(hparam_dict)
        _recorder.log(metric_dict, global_step)


record(SummaryWriter)
