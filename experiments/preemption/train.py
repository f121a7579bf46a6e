"""Serve requests beside a training on one device, and see how long they wait.

The training is the same in all arms: equal numbers of steps, equal losses. Requests come at random
times (a Poisson process); a request's latency is from when it came to its answer.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from enum import Enum
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional

import radt
from radt.training import DeviceLease, Job, MultiTrainer, preemptible

#: On a CPU, two names of the same device; all tensors are copied from one to the other.
_CPUS = ["cpu:0", "cpu:1"]
#: After each, a training that has migrated may go back to the device that it prefers.
_EPOCHS = 4


class Arm(Enum):
    """How serving and training share the device."""

    #: No training.
    ALONE = "alone"
    #: Both whenever they like: threads of one process, or processes.
    FREE = "free"
    #: As `FREE`, but serving has a CUDA stream of higher priority.
    STREAMS = "streams"
    #: Serving waits for the end of a training step (time slicing by iteration).
    SLICED = "sliced"
    #: Serving waits for the end of a segment of the model.
    LEASE = "lease"
    #: The training leaves its step and goes on elsewhere.
    MIGRATE = "migrate"


class Part(Enum):
    """What this process does."""

    BOTH = "both"
    TRAIN = "train"
    SERVE = "serve"


class Residual(nn.Module):
    """Two convolutions and what came in."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(width)
        self.second = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(width)
        self.act = nn.ReLU(inplace=True)

    def forward(self, images: Tensor) -> Tensor:
        found = self.act(self.first_norm(self.first(images)))
        result: Tensor = self.act(self.second_norm(self.second(found)) + images)
        return result


def network(width: int, blocks: int) -> nn.Module:
    """Return a small residual network with dropout."""
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
        *(Residual(width) for _ in range(blocks)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(width, 10),
    )


class Server:
    """Answers requests that come at random times, in a thread of its own.

    Args:
        args: The command line.
        device: Where its model is.
        held: The context in which it uses the device.
    """

    def __init__(
        self,
        args: argparse.Namespace,
        device: torch.device,
        held: Callable[[], AbstractContextManager[object]],
    ) -> None:
        self.latencies_s: list[float] = []
        #: CPU time of the training between a request and its answer, also fair on a busy machine.
        self.training_s: list[float] = []
        #: CPU time of this thread for a request.
        self.answers_s: list[float] = []
        main = threading.main_thread().ident
        assert main is not None
        self._training_clock = time.pthread_getcpuclockid(main)
        self._rate, self._held, self._device = args.requests_per_s, held, device
        self._chance = random.Random(args.seed)
        self._over = threading.Event()
        #: Set after the first step of the training: what comes before is its start.
        self.counting = threading.Event()
        torch.manual_seed(args.seed)
        width = args.serve_width
        layers = [layer for _ in range(4) for layer in (nn.Linear(width, width), nn.ReLU())]
        self._model = nn.Sequential(*layers).to(device).eval()
        self._request = torch.randn(args.request_rows, width, device=device)
        self._thread = threading.Thread(target=self._serve)

    def _serve(self) -> None:
        run = radt.active_run()
        if self._device.type == "cpu":
            torch.set_num_threads(1)  # a new thread has as many as there are cores
        with torch.inference_mode():
            self._answer()
            came_s = time.perf_counter()
            while True:
                came_s += self._chance.expovariate(self._rate)
                if self._over.wait(max(0.0, came_s - time.perf_counter())):
                    return
                trained_s = time.clock_gettime(self._training_clock)
                began_s = time.thread_time()
                with self._held():
                    self._answer()
                if not self.counting.is_set():
                    continue
                self.answers_s.append(time.thread_time() - began_s)
                self.training_s.append(time.clock_gettime(self._training_clock) - trained_s)
                self.latencies_s.append(time.perf_counter() - came_s)
                if run is not None:
                    latency, meanwhile = self.latencies_s[-1], self.training_s[-1]
                    run.log_metrics({"latency": latency, "training_meanwhile": meanwhile})

    def _answer(self) -> None:
        self._model(self._request)
        if self._device.type == "cuda":
            torch.cuda.current_stream().synchronize()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()


def train(
    args: argparse.Namespace, device: torch.device, first_step_ended: Callable[[], None]
) -> list[float]:
    """Train, and return the losses."""
    torch.manual_seed(args.seed)
    batches = [
        (torch.randn(args.batch_size, 3, args.edge, args.edge), torch.arange(args.batch_size) % 10)
        for _ in range(4)
    ]
    loader = [batches[step % 4] for step in range(args.steps // _EPOCHS)]
    model = network(args.width, args.blocks).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    losses: list[float] = []
    optimizer.register_step_post_hook(lambda *_: recorded())
    last = torch.zeros(())

    def loss_of(output: Tensor, target: Tensor) -> Tensor:
        nonlocal last
        loss = functional.cross_entropy(output, target)
        last = loss.detach()
        return loss

    def recorded() -> None:
        losses.append(last.item())
        if len(losses) == 1:
            first_step_ended()
        if (run := radt.active_run()) is not None:
            run.log_metric("loss", losses[-1], step=len(losses))

    torch.manual_seed(args.seed)
    if args.arm is Arm.MIGRATE:
        devices = ["cuda:0", "cpu"] if device.type == "cuda" else _CPUS
        job = Job("train", model, optimizer, loss_of, loader, epochs=_EPOCHS)
        with MultiTrainer(
            [job], policy="preemptive", devices=devices, max_segment_ms=args.max_segment_ms
        ) as trainer:
            for done in trainer.run():
                if done.failure is not None:
                    raise SystemExit(done.failure.message)
        return losses
    lease = DeviceLease(device, "low") if args.arm in (Arm.SLICED, Arm.LEASE) else None
    if lease is not None and args.arm is Arm.LEASE:
        sample = batches[0][0].to(device)
        preemptible(model, lease, sample, max_segment_ms=args.max_segment_ms)
    for images, target in loader * _EPOCHS:
        with nullcontext() if lease is None else lease:
            optimizer.zero_grad(set_to_none=True)
            loss = loss_of(model(images.to(device)), target.to(device))
            loss.backward()
            optimizer.step()
    if lease is not None:
        lease.close()
    return losses


def options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arm", type=Arm, choices=list(Arm), default=Arm.LEASE)
    parser.add_argument("--part", type=Part, choices=list(Part), default=Part.BOTH)
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=12, help="of serving, where none trains")
    parser.add_argument("--max-segment-ms", type=float, default=5)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--edge", type=int, default=32)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--blocks", type=int, default=4)
    parser.add_argument("--requests-per-s", type=float, default=20)
    parser.add_argument("--serve-width", type=int, default=512)
    parser.add_argument("--request-rows", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main() -> None:
    """Serve, train, and record; the last line printed is a summary in JSON."""
    args = options()
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu":
        os.sched_setaffinity(0, {0})  # serving and training share one core
        torch.set_num_threads(1)
    high = nullcontext()
    if args.arm in (Arm.SLICED, Arm.LEASE, Arm.MIGRATE):
        name = _CPUS[0] if args.arm is Arm.MIGRATE and device.type == "cpu" else device
        high = DeviceLease(name, "high")
    elif args.arm is Arm.STREAMS:
        high = torch.cuda.stream(torch.cuda.Stream(priority=-1))
    over = threading.Event()
    if args.part is Part.SERVE:  # a service is asked to end when the training has ended
        signal.signal(signal.SIGTERM, lambda *_: over.set())
    summary: dict[str, float] = {}
    with radt.Run() as run:
        server = Server(args, device, lambda: high)
        with nullcontext() if args.part is Part.TRAIN else server:
            if args.arm is Arm.ALONE or args.part is Part.SERVE:
                server.counting.set()
                over.wait(args.seconds)
            else:
                begin_s = begin_cpu_s = 0.0

                def first_step_ended() -> None:
                    nonlocal begin_s, begin_cpu_s
                    begin_s, begin_cpu_s = time.perf_counter(), time.thread_time()
                    server.counting.set()

                losses = train(args, device, first_step_ended)
                trained = len(losses) - 1
                summary["step_cpu_ms"] = (time.thread_time() - begin_cpu_s) / trained * 1e3
                summary["steps_per_s"] = trained / (time.perf_counter() - begin_s)
                summary["last_loss"] = losses[-1]
        if len(server.latencies_s) > 1:  # quantiles need two
            cuts = statistics.quantiles(server.latencies_s, n=100)
            summary["p50_ms"], summary["p95_ms"] = cuts[49] * 1e3, cuts[94] * 1e3
            summary["answer_cpu_ms"] = statistics.mean(server.answers_s) * 1e3
            summary["p95_training_ms"] = statistics.quantiles(server.training_s, n=100)[94] * 1e3
        if "steps_per_s" in summary:
            run.log_metric("steps_per_s", summary["steps_per_s"])
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
