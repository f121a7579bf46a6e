"""Language models as users write them, with each technique, against the loop that they write.

One contract for models that return their loss: GPT2LMHeadModel of `transformers`, whose batches are
`BatchEncoding`, and one in the style of minGPT, whose batches are pairs.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import AdamW, Optimizer

from radt.errors import TrainingError, UsageError
from radt.training import (
    DeviceLease,
    Job,
    MultiTrainer,
    OverlappedValidator,
    Sums,
    offload,
    preemptible,
)

transformers = pytest.importorskip("transformers")

WORDS, LENGTH = 40, 12


class _Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 2, dropout=0.1, batch_first=True)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(x)


class MinGPT(nn.Module):
    """Returns logits and, given targets, the loss; decides by shapes."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.block_size = 2 * LENGTH
        self.wte, self.wpe = nn.Embedding(WORDS, width), nn.Embedding(self.block_size, width)
        self.h = nn.ModuleList(_Block(width) for _ in range(3))
        self.lm_head = nn.Linear(width, WORDS, bias=False)

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        _, t = idx.size()
        assert t <= self.block_size, f"cannot forward sequence of length {t}"
        x = self.wte(idx) + self.wpe(torch.arange(0, t, device=idx.device).unsqueeze(0))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(x)
        loss = None
        if targets is not None:
            loss = functional.cross_entropy(logits.view(-1, WORDS), targets.view(-1))
        return logits, loss


def _gpt2() -> nn.Module:
    sizes = {
        "n_layer": 3,
        "n_head": 2,
        "n_embd": 16,
        "vocab_size": WORDS,
        "n_positions": 2 * LENGTH,
    }
    model: nn.Module = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)
    )
    return model.train()


@dataclass(frozen=True)
class Kind:
    """A model, its batches, and how a script asks for its loss and its output."""

    name: str

    def model(self) -> nn.Module:
        torch.manual_seed(0)
        return MinGPT() if self.name == "minGPT" else _gpt2()

    def batches(self, count: int) -> list[Any]:
        chance = torch.Generator().manual_seed(5)
        return [self._batch(chance) for _ in range(count)]

    def _batch(self, chance: torch.Generator) -> Any:
        tokens = torch.randint(WORDS, (4, LENGTH), generator=chance)
        if self.name == "minGPT":
            return tokens[:, :-1], tokens[:, 1:].clone()
        mask = torch.ones_like(tokens)
        mask[1, LENGTH // 2 :] = 0  # as a collator pads
        labels = tokens.masked_fill(mask == 0, -100)
        return transformers.BatchEncoding(
            {"input_ids": tokens, "attention_mask": mask, "labels": labels}
        )

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        if self.name == "minGPT":
            loss: Tensor = model(*batch)[1]
            return loss
        return model(**batch).loss  # type: ignore[no-any-return]

    def logits(self, model: nn.Module, batch: Any) -> Tensor:
        if self.name == "minGPT":
            logits: Tensor = model(batch[0])[0]
            return logits
        return model(**batch).logits  # type: ignore[no-any-return]


@pytest.fixture(params=["minGPT", "GPT2LMHeadModel"])
def kind(request: pytest.FixtureRequest) -> Iterator[Kind]:
    yield Kind(request.param)


def optimizer_of(model: nn.Module) -> Optimizer:
    """Return an optimiser whose matrices decay, as minGPT configures it."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": 0.1},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    return AdamW(groups, lr=3e-3)


def plain(
    kind: Kind, model: nn.Module, steps: list[list[Any]], clip_norm: float | None
) -> list[float]:
    """Train in the loop that users write; return the losses."""
    optimizer, losses = optimizer_of(model), []
    for micro_batches in steps:
        total = torch.zeros(())
        for batch in micro_batches:
            part = kind.loss(model, batch) / len(micro_batches)
            part.backward()
            total = total + part.detach()
        if clip_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total.item())
    return losses


def assert_equal(one: nn.Module, other: nn.Module) -> None:
    for (name, value), wanted in zip(one.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(value, wanted), name


@pytest.mark.quick_variants(1)
@pytest.mark.parametrize(
    "options", [{}, {"policy": "preemptive", "devices": ["cpu"], "max_segment_ms": 1.0}]
)
def test_jobs_take_them_without_a_step_or_a_loss(kind: Kind, options: dict[str, Any]) -> None:
    batches = kind.batches(4)
    model, expected = kind.model(), kind.model()
    torch.manual_seed(1)
    plain(kind, expected, [[batch] for batch in batches], None)
    job = Job("net", model, optimizer_of(model), loader=batches, seed=1)
    with MultiTrainer([job], **options) as trainer:
        assert [each.failure for each in trainer.run()] == [None]
    assert_equal(model, expected)


@pytest.mark.quick_variants(1)
@pytest.mark.parametrize(("count", "clip_norm"), [(1, None), (2, 0.5)])
def test_offload_trains_them_with_groups_and_clipping(
    kind: Kind, count: int, clip_norm: float | None
) -> None:
    batches = kind.batches(3 * count)
    steps = [batches[at : at + count] for at in range(0, len(batches), count)]
    model = kind.model()
    whole = copy.deepcopy(model)
    torch.manual_seed(1)
    losses = plain(kind, whole, steps, clip_norm)
    options: dict[str, Any] = {
        "optimizer_class": lambda _: optimizer_of(model), "sample": batches[0],
        "accumulate": count, "clip_norm": clip_norm, "recompute": True,
    }  # fmt: skip
    with pytest.raises(TrainingError, match="smallest budget") as too_small:
        offload(model, **options, memory=1)
    smallest = re.findall(r'memory="(\d+KB)"', too_small.value.remedy)[0]
    torch.manual_seed(1)
    with offload(model, **options, memory=smallest) as step:
        assert len(step.plan.segments) > 1
        assert [step(micro_batches).item() for micro_batches in steps] == losses
        with torch.no_grad():
            logits = kind.logits(model.eval(), batches[0])
            assert torch.equal(logits, kind.logits(whole.eval(), batches[0]))
    assert_equal(model, whole)


@dataclass
class Evaluate:
    """Sums of losses over batches; importable by the validator's process."""

    kind: Kind
    batches: list[Any]

    def __call__(self, model: nn.Module, part: int, parts: int) -> Sums:
        losses = [self.kind.loss(model, batch) for batch in self.batches[part::parts]]
        return Sums(count=len(losses), val_loss=torch.stack(losses).sum())


@pytest.mark.quick_variants(1)
@pytest.mark.parametrize("where", ["process", "thread"])
@pytest.mark.parametrize("is_offloaded", [False, True])
def test_they_are_validated_beside_training(kind: Kind, where: str, is_offloaded: bool) -> None:
    batches = kind.batches(3)
    evaluate = Evaluate(kind, batches)
    model = kind.model()
    optimizer = optimizer_of(model)
    step: Any = Job("net", model, optimizer)
    if is_offloaded:
        step = offload(
            model, optimizer_class=lambda _: optimizer, sample=batches[0], memory="400KB",
            accumulate=1,
        )  # fmt: skip
    found = []
    with OverlappedValidator(evaluate, model, where=where) as validator:
        for epoch, batch in enumerate(batches):
            step([batch]) if is_offloaded else step.step(batch)
            validator.submit(epoch)
            result = validator.wait(epoch)
            replica = kind.model()
            replica.load_state_dict(result.snapshot.state_dict())
            with torch.no_grad():
                serial = evaluate(replica.eval(), 0, 1)
            found.append(result.metrics["val_loss"])
            assert found[-1] == serial.sums["val_loss"] / serial.count
    assert len(set(found)) == len(batches)
    if is_offloaded:
        step.close()
    assert_equal(model, replica)


def test_what_cannot_work_is_an_error_before_training(kind: Kind) -> None:
    model, batch = kind.model(), kind.batches(1)[0]
    model.requires_grad_(True)
    with pytest.raises(UsageError, match="expected \\(inputs, target\\) or a mapping"):
        Job("net", model, optimizer_of(model), functional.mse_loss).step(torch.zeros(3))
    without_labels = batch[:1] if kind.name == "minGPT" else {"input_ids": batch["input_ids"]}
    with pytest.raises(UsageError, match="no loss was given, and the model returned"):
        Job("net", model, optimizer_of(model)).step(without_labels)
    with offload(
        model, optimizer_class=lambda _: optimizer_of(model), sample=batch, memory="2MB"
    ) as step:
        step.job.loader = [[batch]]
        with MultiTrainer([step.job]) as trainer:  # other policies take it
            assert [job.failure for job in trainer.run()] == [None]
        with pytest.raises(TrainingError, match="cannot be cut into segments: it is offloaded"):
            preemptible(model, DeviceLease("cpu"), batch)
        with pytest.raises(UsageError, match="is offloaded, and cannot be left inside a step"):
            MultiTrainer([step.job], policy="preemptive", devices=["cpu"])
        if kind.name != "minGPT":
            with pytest.raises(UsageError, match="the sample had other parts"):
                step([{"input_ids": batch["input_ids"], "labels": batch["labels"]}])
