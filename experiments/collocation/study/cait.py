"""CaiT-XXS24: Touvron et al., Going Deeper with Image Transformers, 2021.

24 layers of self-attention among the patches of an image, then two in which one class token attends
to them. Heads talk to each other before and after the softmax; each branch is scaled by LayerScale.
Without dropout and stochastic depth, which timm's model also leaves out unless asked.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

_DIM = 192
_HEADS = 4
_HEAD_DIM = _DIM // _HEADS
_LAYERS = 24
_CLASS_LAYERS = 2
_MLP_RATIO = 4
_PATCH_PIXELS = 16
#: LayerScale begins here for networks of this depth.
_SCALE = 1e-5
_EPSILON = 1e-6


def _heads(tokens: Tensor) -> Tensor:
    """Shape (N, T, dim) to (N, heads, T, dim of a head)."""
    return tokens.reshape(*tokens.shape[:2], _HEADS, _HEAD_DIM).transpose(1, 2)


class TalkingHeads(nn.Module):
    """Self-attention whose heads are mixed before and after the softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.query_key_value = nn.Linear(_DIM, 3 * _DIM)
        self.before = nn.Linear(_HEADS, _HEADS)
        self.after = nn.Linear(_HEADS, _HEADS)
        self.project = nn.Linear(_DIM, _DIM)

    def forward(self, tokens: Tensor) -> Tensor:
        """Same shape, (N, T, dim)."""
        query, key, value = map(_heads, self.query_key_value(tokens).chunk(3, dim=-1))
        scores = (query * _HEAD_DIM**-0.5) @ key.transpose(-2, -1)
        scores = self.before(scores.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        weights = self.after(scores.softmax(dim=-1).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        out: Tensor = self.project((weights @ value).transpose(1, 2).flatten(2))
        return out


class ClassAttention(nn.Module):
    """The first token attends to all."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(_DIM, _DIM)
        self.key = nn.Linear(_DIM, _DIM)
        self.value = nn.Linear(_DIM, _DIM)
        self.project = nn.Linear(_DIM, _DIM)

    def forward(self, tokens: Tensor) -> Tensor:
        """Shape (N, T, dim) to that of the first token, (N, 1, dim)."""
        attended = functional.scaled_dot_product_attention(
            _heads(self.query(tokens[:, :1])), _heads(self.key(tokens)), _heads(self.value(tokens))
        )
        out: Tensor = self.project(attended.transpose(1, 2).flatten(2))
        return out


class Branches(nn.Module):
    """Attention, then a perceptron, each normalised, scaled and added to what came in."""

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.normalise = nn.ModuleList(nn.LayerNorm(_DIM, eps=_EPSILON) for _ in range(2))
        self.scale = nn.ParameterList(torch.full((_DIM,), _SCALE) for _ in range(2))
        self.attention = attention
        self.perceptron = nn.Sequential(
            nn.Linear(_DIM, _MLP_RATIO * _DIM), nn.GELU(), nn.Linear(_MLP_RATIO * _DIM, _DIM)
        )

    def forward(self, tokens: Tensor, others: Tensor | None = None) -> Tensor:
        """Same shape as ``tokens``, which attend to themselves and to ``others``."""
        seen = tokens if others is None else torch.cat((tokens, others), dim=1)
        tokens = tokens + self.scale[0] * self.attention(self.normalise[0](seen))
        out: Tensor = tokens + self.scale[1] * self.perceptron(self.normalise[1](tokens))
        return out


class Cait(nn.Module):
    """CaiT-XXS24 for square images of three channels.

    Args:
        classes: How many scores come out.
        pixels: Height and width of the images; a multiple of 16.

    Raises:
        ValueError: It is none.
    """

    def __init__(self, classes: int, pixels: int) -> None:
        super().__init__()
        if pixels % _PATCH_PIXELS or pixels <= 0:
            raise ValueError(f"CaiT wants images of a multiple of 16 pixels, not {pixels}")
        patches = (pixels // _PATCH_PIXELS) ** 2
        self.embed = nn.Conv2d(3, _DIM, _PATCH_PIXELS, stride=_PATCH_PIXELS)
        self.class_token = nn.Parameter(torch.zeros(1, 1, _DIM))
        self.position = nn.Parameter(torch.zeros(1, patches, _DIM))
        self.layers = nn.Sequential(*(Branches(TalkingHeads()) for _ in range(_LAYERS)))
        self.class_layers = nn.ModuleList(Branches(ClassAttention()) for _ in range(_CLASS_LAYERS))
        self.normalise = nn.LayerNorm(_DIM, eps=_EPSILON)
        self.classify = nn.Linear(_DIM, classes)
        for weights in (self.class_token, self.position):
            nn.init.trunc_normal_(weights, std=0.02)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)

    def forward(self, images: Tensor) -> Tensor:
        """Scores, shape (N, classes), of images, shape (N, 3, pixels, pixels)."""
        patches = self.layers(self.embed(images).flatten(2).transpose(1, 2) + self.position)
        token = self.class_token.expand(len(images), -1, -1)
        for layer in self.class_layers:
            token = layer(token, patches)
        scores: Tensor = self.classify(self.normalise(token[:, 0]))
        return scores
