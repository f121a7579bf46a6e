"""Networks of the experiment, in plain PyTorch."""

from __future__ import annotations

from torch import Tensor, nn

#: MobileNetV3-Small (Howard et al. 2019, table 2): kernel, expanded and output channels,
#: squeeze-and-excite, hard swish, stride.
_BLOCKS = (
    (3, 16, 16, True, False, 2),
    (3, 72, 24, False, False, 2),
    (3, 88, 24, False, False, 1),
    (5, 96, 40, True, True, 2),
    (5, 240, 40, True, True, 1),
    (5, 240, 40, True, True, 1),
    (5, 120, 48, True, True, 1),
    (5, 144, 48, True, True, 1),
    (5, 288, 96, True, True, 2),
    (5, 576, 96, True, True, 1),
    (5, 576, 96, True, True, 1),
)


def convnet(stride: int, width: int, classes: int) -> nn.Module:
    """Return a small network that looks at every ``stride``-th pixel only.

    Input: bytes, (N, 3, pixels, pixels); output: (N, classes).
    """
    return nn.Sequential(
        _Scaled(stride),
        nn.Conv2d(3, width, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(2 * width, 2 * width, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(8 * width, classes),
    )


def mobilenet(width: float, classes: int) -> nn.Module:
    """Return MobileNetV3-Small with ``width`` times its channels.

    Input: bytes, (N, 3, pixels, pixels); output: (N, classes).
    """

    def wide(channels: int) -> int:
        return max(8, int(channels * width + 4) // 8 * 8)

    layers: list[nn.Module] = [_Scaled(), _convolution(3, wide(16), 3, 2), nn.Hardswish()]
    channels = wide(16)
    for kernel, expanded, out, squeezed, swish, stride in _BLOCKS:
        layers.append(_Block(channels, wide(expanded), wide(out), kernel, stride, squeezed, swish))
        channels = wide(out)
    last = wide(576)
    layers += [_convolution(channels, last, 1), nn.Hardswish(), nn.AdaptiveAvgPool2d(1)]
    layers += [nn.Flatten(), nn.Linear(last, wide(1024)), nn.Hardswish(), nn.Dropout(0.2)]
    return nn.Sequential(*layers, nn.Linear(wide(1024), classes))


def _convolution(
    channels: int, out: int, kernel: int, stride: int = 1, groups: int = 1
) -> nn.Module:
    convolution = nn.Conv2d(channels, out, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(out))


class _Scaled(nn.Module):
    """Bytes of every ``stride``-th pixel as numbers from -2 to 2."""

    def __init__(self, stride: int = 1) -> None:
        super().__init__()
        self.stride = stride

    def forward(self, images: Tensor) -> Tensor:
        return (images[:, :, :: self.stride, :: self.stride].float() - 128) / 64


class _Block(nn.Module):
    """An inverted residual."""

    def __init__(
        self,
        channels: int,
        expanded: int,
        out: int,
        kernel: int,
        stride: int,
        squeezed: bool,
        swish: bool,
    ) -> None:
        super().__init__()
        act = nn.Hardswish if swish else nn.ReLU
        self.adds = stride == 1 and channels == out
        self.layers = nn.Sequential(
            _convolution(channels, expanded, 1),
            act(),
            _convolution(expanded, expanded, kernel, stride, groups=expanded),
            _SqueezeExcite(expanded) if squeezed else nn.Identity(),
            act(),
            _convolution(expanded, out, 1),
        )

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.layers(inputs)
        return inputs + outputs if self.adds else outputs


class _SqueezeExcite(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        inner = max(8, channels // 4 // 8 * 8)
        self.scale = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(channels, inner, 1),
            nn.ReLU(),
            nn.Conv2d(inner, channels, 1),
            nn.Hardsigmoid(),
        )

    def forward(self, inputs: Tensor) -> Tensor:
        scale: Tensor = self.scale(inputs)
        return inputs * scale
