"""A replica of tests of `ElasticAverager`: prints a line of JSON for each round.

python -m tests.support.averaging_replica NAME [options]
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
from argparse import ArgumentParser
from functools import partial

import torch
from torch import nn

from radt.training import ElasticAverager, Job
from radt.training.exchange import Exchange


def model(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 2))


def digest(module: nn.Module) -> str:
    parts = b"".join(t.detach().numpy().tobytes() for t in module.state_dict().values())
    return hashlib.sha256(parts).hexdigest()[:16]


def die_at(point: str, rounds: int, averager: list[ElasticAverager]) -> None:
    """Kill this process in the given round at a method of `Exchange`."""
    original = getattr(Exchange, point)

    def dying(self: Exchange, *arguments: object) -> object:
        if averager and averager[0].rounds == rounds:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(self, *arguments)

    setattr(Exchange, point, dying)


def main() -> None:
    parser = ArgumentParser()
    parser.add_argument("seed", type=int)
    parser.add_argument("--group", required=True)
    parser.add_argument("--until", type=int, default=64)
    parser.add_argument("--global-batch", type=int, default=16)
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--outer", action="store_true")
    parser.add_argument("--idle", action="store_true", help="does nothing")
    parser.add_argument("--step-by-step", action="store_true", help="a step a line of input")
    parser.add_argument("--die-at", help="a method of Exchange")
    parser.add_argument("--die-in", type=int, default=1, help="round")
    options = parser.parse_args()
    torch.set_num_threads(1)
    net = model(options.seed)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    job = Job("net", net, optimizer, nn.functional.mse_loss, scheduler=scheduler)
    outer = partial(torch.optim.SGD, lr=0.7, momentum=0.9, nesterov=True) if options.outer else None
    running: list[ElasticAverager] = []
    if options.die_at:
        die_at(options.die_at, options.die_in, running)

    def tell(what: str) -> None:
        line = {
            "what": what,
            "rounds": averager.rounds,
            "samples": averager.samples,
            "replicas": averager.replicas,
            "plan": averager.plan,
            "digest": digest(net),
            "optimizer_steps": [int(s["step"]) for s in optimizer.state_dict()["state"].values()],
            "parameters": torch.cat([p.detach().flatten() for p in net.parameters()]).tolist(),
        }
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()

    torch.manual_seed(options.seed)
    with ElasticAverager(
        job,
        global_batch=options.global_batch,
        group=options.group,
        replicas=options.replicas,
        outer=outer,
        plan={"cut": options.seed},
        timeout_s=20,
    ) as averager:
        running.append(averager)
        tell("joined")
        while averager.samples < options.until:
            if options.step_by_step:
                if not sys.stdin.readline():
                    break
                tell("before")
            done = 0
            if not options.idle:
                inputs = torch.randn(options.batch, 6)
                job.step((inputs, inputs[:, :2].sin()))
                done = options.batch
                if options.step_by_step:
                    tell("step")
            if averager.did(done):
                tell("round")
    tell("end")


if __name__ == "__main__":
    main()
