"""TensorBoard as PyTorch writes it: a `SummaryWriter` whose scalars are the run's too."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from radt.integrations.hooks import call_after, needs
from radt.integrations.recorder import TrainingRecorder

with needs("tensorboard", __name__):
    from torch.utils import tensorboard as torch_tensorboard

__all__ = ["SummaryWriter"]

#: Whose calls are not the script's: these libraries' values come by their integrations, and
#: PyTorch's ``add_hparams`` writes its metrics with a writer of its own.
_OTHERS = {
    *("lightning", "lightning_fabric", "pytorch_lightning", "transformers", "accelerate", "torch")
}
#: From `_is_of_script` to who called the writer: an action, its guard, and the method lie between.
_FRAMES_BETWEEN = 4

_recorder = TrainingRecorder()


class SummaryWriter(torch_tensorboard.SummaryWriter):
    """Write for TensorBoard as PyTorch's class does, and record scalars in the run.

    ``add_scalar`` and ``add_scalars`` (``main/name``) log values at their global step;
    ``add_hparams`` records parameters, and its metrics. All else is TensorBoard's only.
    """


def record(writer_class: type) -> None:
    """Have what a class of writers gets go to the run as well; for PyTorch's, see `autolog`."""
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
    writer: object,
    tag: str,
    scalar_value: Any,
    global_step: Any = None,
    *args: Any,
    **kwargs: Any,
) -> None:
    if _is_of_script(writer):
        _recorder.log({tag: scalar_value}, global_step)


def _add_scalars(
    writer: object,
    main_tag: str,
    tag_scalar_dict: Mapping[str, Any],
    global_step: Any = None,
    *args: Any,
    **kwargs: Any,
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
