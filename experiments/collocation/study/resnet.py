"""ResNets of bottleneck blocks: 26, 50 and 152 layers deep.

He et al., Deep Residual Learning for Image Recognition, 2016, with the stride in the 3×3
convolution as in PyTorch and timm. ResNet-26 is timm's: two blocks a stage. Images of 32×32 pass
the same stem as those of 224×224, as they do with timm's models, which the study used.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

#: Blocks in each of the four stages, by depth.
STAGES: dict[int, tuple[int, ...]] = {26: (2, 2, 2, 2), 50: (3, 4, 6, 3), 152: (3, 8, 36, 3)}

_EXPANSION = 4
_WIDTHS = (64, 128, 256, 512)
_STEM_CHANNELS = 64


class Bottleneck(nn.Module):
    """1×1, 3×3 and 1×1 convolutions around a shortcut; four times as many channels come out."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        out = width * _EXPANSION
        self.body = nn.Sequential(
            nn.Conv2d(channels, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, out, 1, bias=False),
            (last := nn.BatchNorm2d(out)),
        )
        nn.init.zeros_(last.weight)  # each block begins as its shortcut
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out)
            )
        self.activate = nn.ReLU(inplace=True)

    def forward(self, images: Tensor) -> Tensor:
        """Shape (N, channels, H, W) to (N, 4 × width, H / stride, W / stride)."""
        out: Tensor = self.activate(self.body(images) + self.shortcut(images))
        return out


class ResNet(nn.Module):
    """A ResNet for images of three channels.

    Args:
        blocks: How many blocks each stage has (`STAGES`).
        classes: How many scores come out.
    """

    def __init__(self, blocks: Sequence[int], classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, _STEM_CHANNELS, 7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(_STEM_CHANNELS),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
        channels = _STEM_CHANNELS
        stages: list[nn.Module] = []
        for stage, (width, count) in enumerate(zip(_WIDTHS, blocks, strict=True)):
            for block in range(count):
                stages.append(Bottleneck(channels, width, 2 if stage and not block else 1))
                channels = width * _EXPANSION
        self.stages = nn.Sequential(*stages)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classify = nn.Linear(channels, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        """Scores, shape (N, classes), of images, shape (N, 3, H, W)."""
        scores: Tensor = self.classify(self.pool(self.stages(self.stem(images))).flatten(1))
        return scores
