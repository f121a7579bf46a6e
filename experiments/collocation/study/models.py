"""The models of the study by name: ours in plain PyTorch, or timm's where it is installed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from importlib import import_module
from importlib.util import find_spec

from torch import nn

from study.cait import Cait
from study.efficientnet import EfficientNetV2S
from study.recommender import CRITEO_ROWS, Recommender, capped
from study.resnet import STAGES, ResNet


class Model(StrEnum):
    """What can be trained."""

    RESNET26 = "resnet26"
    RESNET50 = "resnet50"
    RESNET152 = "resnet152"
    EFFICIENTNET = "efficientnet_v2_s"
    CAIT = "cait_xxs24"
    RECOMMENDER = "recommender"

    @property
    def sees_images(self) -> bool:
        return self is not Model.RECOMMENDER


#: Ours, given the number of classes and the pixels of a side.
_IMAGE_MODELS: Mapping[Model, Callable[[int, int], nn.Module]] = {
    Model.RESNET26: lambda classes, _: ResNet(STAGES[26], classes),
    Model.RESNET50: lambda classes, _: ResNet(STAGES[50], classes),
    Model.RESNET152: lambda classes, _: ResNet(STAGES[152], classes),
    Model.EFFICIENTNET: lambda classes, _: EfficientNetV2S(classes),
    Model.CAIT: Cait,
}

#: What timm calls the same architectures.
TIMM_NAMES: Mapping[Model, str] = {
    Model.RESNET26: "resnet26",
    Model.RESNET50: "resnet50",
    Model.RESNET152: "resnet152",
    Model.EFFICIENTNET: "efficientnetv2_s",
    Model.CAIT: "cait_xxs24_224",
}


def image_model(model: Model, classes: int, pixels: int) -> nn.Module:
    """A model with new weights, on the default device.

    Raises:
        ValueError: The model cannot see images of this size.
    """
    return _IMAGE_MODELS[model](classes, pixels)


def timm_model(model: Model, classes: int, pixels: int) -> nn.Module:
    """timm's model of the same architecture with new weights, on the default device.

    Raises:
        ValueError: timm is not installed, or has no such model.
    """
    if model not in TIMM_NAMES:
        raise ValueError(f"timm has no model for {model}: leave --timm out")
    if find_spec("timm") is None:
        raise ValueError("timm is not installed: pip install timm, or leave --timm out")
    # Only transformers have as many positions as there are patches.
    sized = {"img_size": pixels} if model is Model.CAIT else {}
    made: nn.Module = import_module("timm").create_model(
        TIMM_NAMES[model], num_classes=classes, **sized
    )
    return made


def recommender(max_rows: int) -> nn.Module:
    """A recommender whose tables have at most so many rows each."""
    return Recommender(capped(CRITEO_ROWS, max_rows))


def parameter_count(model: nn.Module) -> int:
    """Trained parameters."""
    return sum(parameter.numel() for parameter in model.parameters())
