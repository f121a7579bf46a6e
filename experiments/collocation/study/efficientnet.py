"""EfficientNetV2-S: Tan and Le, EfficientNetV2: Smaller Models and Faster Training, 2021, table 4.

Without dropout and stochastic depth, which timm's models also leave out unless asked.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

_STEM_CHANNELS = 24
_HEAD_CHANNELS = 1280
_EPSILON = 1e-3
#: Channels of the squeeze by those that come into the block.
_SQUEEZE = 4


@dataclass(frozen=True, slots=True)
class Stage:
    """A row of the paper's table.

    Attributes:
        expansion: Channels within a block by those that come in.
        stride: Of the first block.
        channels: That come out.
        blocks: How many.
        fused: One 3×3 convolution instead of a 1×1 and a depthwise one; without squeeze.
    """

    expansion: int
    stride: int
    channels: int
    blocks: int
    fused: bool


STAGES = (
    Stage(expansion=1, stride=1, channels=24, blocks=2, fused=True),
    Stage(expansion=4, stride=2, channels=48, blocks=4, fused=True),
    Stage(expansion=4, stride=2, channels=64, blocks=4, fused=True),
    Stage(expansion=4, stride=2, channels=128, blocks=6, fused=False),
    Stage(expansion=6, stride=1, channels=160, blocks=9, fused=False),
    Stage(expansion=6, stride=2, channels=256, blocks=15, fused=False),
)


def _conv(
    channels: int, out: int, size: int, stride: int = 1, groups: int = 1, *, active: bool = True
) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels, out, size, stride, size // 2, groups=groups, bias=False),
        nn.BatchNorm2d(out, eps=_EPSILON),
        nn.SiLU(inplace=True) if active else nn.Identity(),
    )


class Squeeze(nn.Module):
    """Squeeze and excitation: channels weighted by what all pixels have in them."""

    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.weigh = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(channels, squeezed, 1),
            nn.SiLU(inplace=True),
            nn.Conv2d(squeezed, channels, 1),
            nn.Sigmoid(),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Same shape."""
        weighed: Tensor = images * self.weigh(images)
        return weighed


class Block(nn.Module):
    """An MBConv or fused MBConv block, with a shortcut where shapes allow."""

    def __init__(self, channels: int, stage: Stage, stride: int) -> None:
        super().__init__()
        inner, out = channels * stage.expansion, stage.channels
        if stage.fused and stage.expansion == 1:
            self.body = _conv(channels, out, 3, stride)
        elif stage.fused:
            self.body = nn.Sequential(
                _conv(channels, inner, 3, stride), _conv(inner, out, 1, active=False)
            )
        else:
            self.body = nn.Sequential(
                _conv(channels, inner, 1),
                _conv(inner, inner, 3, stride, groups=inner),
                Squeeze(inner, channels // _SQUEEZE),
                _conv(inner, out, 1, active=False),
            )
        self.has_shortcut = stride == 1 and channels == out

    def forward(self, images: Tensor) -> Tensor:
        """Shape (N, channels, H, W) to (N, channels of the stage, H / stride, W / stride)."""
        out: Tensor = self.body(images)
        return out + images if self.has_shortcut else out


class EfficientNetV2S(nn.Module):
    """EfficientNetV2-S for images of three channels.

    Args:
        classes: How many scores come out.
    """

    def __init__(self, classes: int) -> None:
        super().__init__()
        channels = _STEM_CHANNELS
        blocks: list[nn.Module] = []
        for stage in STAGES:
            for number in range(stage.blocks):
                blocks.append(Block(channels, stage, 1 if number else stage.stride))
                channels = stage.channels
        self.stem = _conv(3, _STEM_CHANNELS, 3, stride=2)
        self.blocks = nn.Sequential(*blocks)
        self.head = _conv(channels, _HEAD_CHANNELS, 1)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classify = nn.Linear(_HEAD_CHANNELS, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out")

    def forward(self, images: Tensor) -> Tensor:
        """Scores, shape (N, classes), of images, shape (N, 3, H, W)."""
        features = self.head(self.blocks(self.stem(images)))
        scores: Tensor = self.classify(self.pool(features).flatten(1))
        return scores
