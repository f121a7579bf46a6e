"""Train a GPT-like network with all of its parameters in memory, or with a part of them."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from enum import Enum
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import AdamW

import radt
from radt.training import offload

MicroBatches = list[tuple[Tensor, Tensor]]


class Arm(Enum):
    """What is compared."""

    RESIDENT = "resident"
    NEEDED = "needed"
    AHEAD = "ahead"
    #: PyTorch's own: parameters gathered from the host's memory layer by layer; on a GPU.
    FSDP2 = "fsdp2"


class Layer(nn.Module):
    """Causal self-attention and a network of two layers."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention = nn.LayerNorm(width)
        self.attention = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return values of the shape (batch, length, width) of the input."""
        rows, length, width = x.shape
        parts = self.attention(self.norm_attention(x))
        parts = parts.view(rows, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.projection(mixed.transpose(1, 2).reshape(rows, length, width))
        return x + self.down(functional.gelu(self.up(self.norm(x))))


class Network(nn.Module):
    """Embeddings, layers, and a linear layer that predicts the next token."""

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__()
        self.tokens = nn.Embedding(args.tokens, args.width)
        self.positions = nn.Parameter(torch.randn(args.length, args.width) * 0.02)
        self.layers = nn.ModuleList(Layer(args.width, args.heads) for _ in range(args.layers))
        self.norm = nn.LayerNorm(args.width)
        self.head = nn.Linear(args.width, args.tokens, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return scores of the shape (batch, length, tokens)."""
        x = self.tokens(tokens) + self.positions
        for layer in self.layers:
            x = layer(x)
        scores: Tensor = self.head(self.norm(x))
        return scores


def loss_of(scores: Tensor, target: Tensor) -> Tensor:
    """Return the mean cross-entropy."""
    return functional.cross_entropy(scores.flatten(0, 1), target.flatten())


def steps(args: argparse.Namespace) -> Iterator[MicroBatches]:
    """Give each step's micro-batches: sequences that count up from a random token."""
    chance = torch.Generator().manual_seed(args.seed)
    for _ in range(args.steps):
        micro_batches = []
        for _ in range(args.accumulate):
            first = torch.randint(args.tokens, (args.batch_size, 1), generator=chance)
            row = (first + torch.arange(args.length + 1)) % args.tokens
            micro_batches.append((row[:, :-1], row[:, 1:]))
        yield micro_batches


def plain(
    model: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device
) -> Callable[[MicroBatches], Tensor]:
    """Return the plain loop's step."""

    def step(micro_batches: MicroBatches) -> Tensor:
        total = torch.zeros((), device=device)
        for inputs, target in micro_batches:
            scores = model(inputs.to(device))
            loss = loss_of(scores, target.to(device)) / len(micro_batches)
            loss.backward()
            total = total + loss.detach()
        optimizer.step()
        optimizer.zero_grad()
        return total

    return step


def sharded(model: Network, device: torch.device) -> nn.Module:
    """Return the model with FSDP2's offloading, on one rank."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

    mesh = init_device_mesh(device.type, (1,))
    policy = CPUOffloadPolicy(pin_memory=device.type == "cuda")
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, offload_policy=policy)
    fully_shard(model, mesh=mesh, offload_policy=policy)
    return model


def options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arm", type=Arm, choices=list(Arm), default=Arm.AHEAD)
    parser.add_argument("--memory", default="34MB", help="budget of needed and ahead")
    parser.add_argument("--accumulate", type=int, default=4, help="micro-batches of a step, C")
    parser.add_argument("--recompute", choices=("auto", "yes", "no"), default="auto")
    parser.add_argument("--uncached", action="store_true", help="drop the file from the page cache")
    parser.add_argument("--folder", type=Path, default=Path("/var/tmp"), help="of the file")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=1, help="of a micro-batch")
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main() -> None:
    """Train and record."""
    args = options()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu":
        torch.set_num_threads(1)  # another core is for loading
    torch.manual_seed(args.seed)
    model = Network(args)
    optimizer_class = partial(AdamW, lr=3e-4)
    size_mb = sum(parameter.nbytes for parameter in model.parameters()) / 1e6

    with radt.Run() as run, ExitStack() as stack:
        run.log_params({"arm": args.arm.value, "seed": args.seed, "parameters_mb": size_mb})
        if args.arm in (Arm.NEEDED, Arm.AHEAD):
            step = stack.enter_context(
                offload(
                    model,
                    optimizer_class=optimizer_class,
                    loss=loss_of,
                    sample=next(steps(args))[0],
                    device=device,
                    memory=args.memory,
                    accumulate=args.accumulate,
                    recompute={"auto": "auto", "yes": True, "no": False}[args.recompute],
                    folder=args.folder,
                    page_cache=not args.uncached,
                    ahead=args.arm is Arm.AHEAD,
                )
            )
            print(step.plan)
            run.log_metric("expected_speed", step.plan.speed)
        else:
            if args.arm is Arm.FSDP2:
                backend = "nccl" if device.type == "cuda" else "gloo"
                store = torch.distributed.HashStore()
                torch.distributed.init_process_group(backend, store=store, rank=0, world_size=1)
                stack.callback(torch.distributed.destroy_process_group)
                trained = sharded(model, device)
            else:
                trained = model.to(device)
            step = plain(trained, optimizer_class(trained.parameters()), device)
        for number, micro_batches in enumerate(steps(args)):
            begin_s = time.perf_counter()
            loss = step(micro_batches).item()
            values = {"loss": loss, "step_s": time.perf_counter() - begin_s}
            if number > 0 and args.arm in (Arm.NEEDED, Arm.AHEAD):
                values["counted_mb"] = step.peak_bytes / 1e6
            run.log_metrics(values, step=number)
            run.step(args.accumulate * args.batch_size)
            print(f"step {number}  loss {loss!r}  {values['step_s']:.3f} s", flush=True)


if __name__ == "__main__":
    main()
