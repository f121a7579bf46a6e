"""A recommender: Naumov et al., Deep Learning Recommendation Model (DLRM), 2019.

Numbers pass a perceptron, categories are looked up in tables; all pairs of these vectors are
multiplied, and a second perceptron makes one score of the products. Widths are those of MLPerf's
benchmark for Criteo's terabyte of clicks. The tables are what takes memory: nearly nothing is
computed with them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

#: Values of the 26 categories in Criteo's terabyte of clicks, at most 40 million each: MLPerf's.
CRITEO_ROWS = (
    *(39_884_406, 39_043, 17_289, 7_420, 20_263, 3, 7_120, 1_543, 63, 38_532_951),
    *(2_953_546, 403_346, 10, 2_208, 11_938, 155, 4, 976, 14, 39_979_771, 25_641_295),
    *(39_664_984, 585_935, 12_972, 108, 36),
)
DENSE_FEATURES = 13
_DIM = 128
_BOTTOM = (512, 256, _DIM)
_TOP = (1024, 1024, 512, 256, 1)


def capped(rows: Sequence[int], max_rows: int) -> tuple[int, ...]:
    """Rows of tables of which none has more than so many; categories share rows beyond."""
    return tuple(min(count, max_rows) for count in rows)


def _perceptron(inputs: int, widths: Sequence[int]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for width in widths:
        layers += [nn.Linear(inputs, width), nn.ReLU(inplace=True)]
        inputs = width
    return nn.Sequential(*layers)


class Recommender(nn.Module):
    """A DLRM whose tables get sparse gradients: only rows that were looked up change.

    Args:
        rows: Of each table (`CRITEO_ROWS`, `capped`).
    """

    pairs: Tensor

    def __init__(self, rows: Sequence[int]) -> None:
        super().__init__()
        self.bottom = _perceptron(DENSE_FEATURES, _BOTTOM)
        tables = [nn.Embedding(count, _DIM, sparse=True) for count in rows]
        for table in tables:
            bound = table.num_embeddings**-0.5
            nn.init.uniform_(table.weight, -bound, bound)
        self.tables = nn.ModuleList(tables)
        vectors = len(rows) + 1
        pairs = torch.tril_indices(vectors, vectors, offset=-1)
        self.register_buffer("pairs", pairs, persistent=False)
        self.top = _perceptron(_DIM + pairs.shape[1], _TOP[:-1])
        self.score = nn.Linear(_TOP[-2], _TOP[-1])
        for module in self.modules():
            if isinstance(module, nn.Linear):  # as in DLRM's own code
                nn.init.xavier_normal_(module.weight)
                nn.init.normal_(module.bias, std=module.out_features**-0.5)

    def forward(self, dense: Tensor, categories: Tensor) -> Tensor:
        """Scores, shape (N,), of numbers, shape (N, 13), and categories, shape (N, tables)."""
        numbers = self.bottom(dense)
        looked_up = [table(categories[:, place]) for place, table in enumerate(self.tables)]
        vectors = torch.stack((numbers, *looked_up), dim=1)
        products = (vectors @ vectors.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        score: Tensor = self.score(self.top(torch.cat((numbers, products), dim=1)))
        return score.squeeze(1)
