"""Train on two machines with a slow link: as a pipeline, or as full copies that are averaged.

The two machines are processes in network namespaces of their own. ``--arm replica`` is one replica
by itself, for the workload in which one is killed and one joins.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection

import link
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.nn import functional

import radt
from radt.home import RUNTIME_VARIABLE, runtime_dir
from radt.training import ElasticAverager, Job

_PORTS = {"lighthouse": 29510, "pipeline": 29511}
_RATE = 0.02


@dataclass(frozen=True)
class Size:
    """A model of equal layers, and its micro-batches."""

    layers: int
    width: int
    rows: int
    micro_batches: int

    @property
    def activation_bytes(self) -> int:
        """Bytes of a micro-batch between two layers."""
        return self.rows * self.width * 4


SIZES = {
    "tiny": Size(2, 32, 8, 4),
    "small": Size(4, 256, 512, 16),  # 1.1 MB of parameters, 0.52 MB of activations
    "large": Size(4, 1536, 128, 8),  # 38 MB and 0.79 MB
}


def layers_of(size: Size, first: int, last: int) -> nn.Sequential:
    """Return some layers, the same whoever asks."""
    blocks = []
    for index in range(first, last):
        torch.manual_seed(index)
        blocks += [nn.Linear(size.width, size.width), nn.Tanh()]
    return nn.Sequential(*blocks)


def data(size: Size, seed: int, micro_batches: int) -> tuple[Tensor, Tensor]:
    """Return inputs and targets of some micro-batches."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(size.rows * micro_batches, size.width, generator=generator)
    return inputs, inputs.roll(1, dims=1).sin()


def pipeline(size: Size, arm: str, rank: int, batches: int, report: Connection) -> None:
    """Train half of the layers as one stage of torch's GPipe or 1F1B."""
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://{link.ADDRESSES[0]}:{_PORTS['pipeline']}",
        rank=rank,
        world_size=2,
        timeout=timedelta(minutes=5),
    )
    half = size.layers // 2
    module = layers_of(size, rank * half, (rank + 1) * half)
    stage = PipelineStage(module, rank, 2, torch.device("cpu"))
    kind = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}[arm]
    schedule = kind(stage, size.micro_batches, loss_fn=functional.mse_loss)
    optimizer = torch.optim.SGD(module.parameters(), _RATE)
    for batch in range(batches + 1):  # the first one is a warm-up
        inputs, target = data(size, batch, size.micro_batches)
        dist.barrier()
        began_s, sent = time.monotonic(), link.sent_bytes()
        losses: list[Tensor] = []
        if rank == 0:
            schedule.step(inputs)
        else:
            schedule.step(target=target, losses=losses)
        optimizer.step()
        optimizer.zero_grad()
        dist.barrier()
        loss = float(torch.stack(losses).detach().mean()) if losses else 0.0
        report.send((batch, time.monotonic() - began_s, link.sent_bytes() - sent, loss))
    dist.destroy_process_group()


def copies(size: Size, rank: int, batches: int, report: Connection) -> None:
    """Train a full copy on half of the micro-batches, averaged once a global batch."""
    lighthouse = f"http://{link.ADDRESSES[0]}:{_PORTS['lighthouse']}"
    group = f"copies {os.getppid()}"
    command = [sys.executable, "-m", "radt.training.lighthouse", "--group", group]
    command += ["--host", link.ADDRESSES[0], "--port", str(_PORTS["lighthouse"])]
    server = subprocess.Popen(command) if not rank else None
    try:
        module = layers_of(size, 0, size.layers)
        optimizer = torch.optim.SGD(module.parameters(), _RATE)
        job = Job("copy", module, optimizer, functional.mse_loss)
        global_batch = size.rows * size.micro_batches
        with ElasticAverager(
            job, global_batch=global_batch, group=group, replicas=2, lighthouse=lighthouse
        ) as averager:
            batch = done = 0
            began_s, sent, before = time.monotonic(), link.sent_bytes(), averager.samples
            while averager.rounds <= batches:  # the first one is a warm-up
                inputs, target = data(size, 2 * done + rank, 1)
                loss = float(job.step((inputs, target)))
                done += 1
                if averager.did(size.rows):
                    now_s, now_sent = time.monotonic(), link.sent_bytes()
                    # A replica may have begun one more when the others had done enough.
                    share = global_batch / (averager.samples - before)
                    report.send((batch, (now_s - began_s) * share, now_sent - sent, loss))
                    batch += 1
                    began_s, sent, before = now_s, now_sent, averager.samples
    finally:
        if server is not None:
            server.terminate()
            server.wait()


def work(
    arm: str, size: Size, beside: int | None, mbit: int, batches: int, report: Connection
) -> None:
    """Be one of the two machines; the second one knows the first one's process."""
    rank = 0 if beside is None else 1
    link.enter_namespace(beside)
    torch.set_num_threads(1)
    report.send("ready")
    other = report.recv()  # its process; the second one hears it when the link is there
    if rank == 0:
        link.join(other)
        report.send("joined")
    link.open_end(rank, mbit)
    if arm == "copies":
        copies(size, rank, batches, report)
    else:
        pipeline(size, arm, rank, batches, report)


def on_two_machines(
    arm: str, size: Size, mbit: int, batches: int
) -> list[tuple[float, int, float]]:
    """Return seconds, bytes sent by both, and loss of each global batch."""
    link.check()
    context = multiprocessing.get_context("fork")
    # In their namespace, in which the user is called root, it would be root's folder.
    os.environ.setdefault(RUNTIME_VARIABLE, str(runtime_dir()))
    ends: list[Connection] = []
    processes: list[multiprocessing.context.ForkProcess] = []
    try:
        for _ in range(2):
            mine, theirs = context.Pipe()
            beside = processes[0].pid if processes else None
            arguments = (arm, size, beside, mbit, batches, theirs)
            processes.append(context.Process(target=work, args=arguments, daemon=True))
            processes[-1].start()
            theirs.close()
            ends.append(mine)
            mine.recv()
        ends[0].send(processes[1].pid)
        ends[0].recv()
        ends[1].send(processes[0].pid)
        found = []
        for _ in range(batches + 1):
            both = [end.recv() for end in ends]
            found.append((max(b[1] for b in both), sum(b[2] for b in both), both[1][3]))
    except EOFError:
        sys.exit("slow-network: a machine ended early; its message is above")
    for process in processes:
        process.join()
    return found[1:]


def main() -> None:
    """Run one arm and log its global batches."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arm", choices=["gpipe", "1f1b", "copies", "replica"], required=True)
    parser.add_argument("--mbit", type=int, default=0, help="rate of the link; 0: unshaped")
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--micro-batches", type=int, help="of a global batch")
    parser.add_argument("--batches", type=int, default=3, help="global batches")
    parser.add_argument("--json", action="store_true", help="print them; no run")
    parser.add_argument("--killed-in", type=int, help="replica: die in this round")
    parser.add_argument("--replicas", type=int, default=3, help="replica: begin with so many")
    options = parser.parse_args()
    size = SIZES[options.size]
    if options.micro_batches:
        size = Size(size.layers, size.width, size.rows, options.micro_batches)
    if options.arm == "replica":
        if options.killed_in is not None and not options.json:
            subprocess.run([sys.executable, *sys.argv, "--json"], check=False)
            options.killed_in, options.replicas = None, 1  # the row itself joins in its place
        replica(size, options)
        return
    if options.json:
        found = on_two_machines(options.arm, size, options.mbit, options.batches)
        sys.stdout.write(json.dumps(found) + "\n")
        return
    parameter_bytes = size.layers * (size.width + 1) * size.width * 4
    # Atom, section 3.1: a pipeline sends 2·M·A bytes on two machines, full copies P in all.
    break_even = parameter_bytes / (2 * size.activation_bytes)
    with radt.Run() as run:
        predicted = "copies" if size.micro_batches > break_even else "a pipeline"
        run.log_params({"predicted": f"{predicted} ({break_even:.1f} to break even)"})
        found = on_two_machines(options.arm, size, options.mbit, options.batches)
        for batch, (seconds, sent, loss) in enumerate(found):
            run.log_metrics({"batch_time": seconds, "sent": float(sent), "loss": loss}, step=batch)


def replica(size: Size, options: argparse.Namespace) -> None:
    """Train as one replica of a group that loses one and gets one."""
    torch.set_num_threads(1)
    module = layers_of(size, 0, size.layers)
    optimizer = torch.optim.SGD(module.parameters(), _RATE)
    job = Job("copy", module, optimizer, functional.mse_loss)
    global_batch = size.rows * size.micro_batches
    stalls: list[float] = []
    with (
        nullcontext() if options.json else radt.Run() as run,
        ElasticAverager(
            job, global_batch=global_batch, group="slow-network", replicas=options.replicas
        ) as averager,
    ):
        done = 0
        while averager.rounds < options.batches:
            loss = float(job.step(data(size, done * 1000 + os.getpid(), 1)))
            done += 1
            began_s = time.monotonic()
            if averager.did(size.rows):
                stalls.append(time.monotonic() - began_s)
                if run is not None:
                    run.log_metrics({"stall": stalls[-1], "loss": loss}, step=averager.rounds)
            if options.killed_in is not None and averager.rounds >= options.killed_in:
                os.kill(os.getpid(), signal.SIGKILL)
    if options.json:
        sys.stdout.write(json.dumps(stalls) + "\n")


if __name__ == "__main__":
    main()
