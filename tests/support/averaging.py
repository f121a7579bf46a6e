"""Replicas of an `ElasticAverager` as processes that a test leads step by step, or lets run."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any, Self

import psutil
import pytest
import torch
from torch import Tensor, nn

from radt.training import ElasticAverager, Job, averaging, lighthouse, meeting, offload
from radt.training.exchange import Exchange
from radt.training.job import Each
from tests.support import host_gpu
from tests.support.waiting import TIMEOUT_S, wait_until

#: Forked from one server that has PyTorch already, with what the first optimiser would import.
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["torch._dynamo", "tests.support.averaging"])
#: After so long without a heartbeat a replica is dead. Long: a busy one is not dead.
HEARTBEAT_S = TIMEOUT_S
#: Where some do, and the others wait for so long.
SHORT_HEARTBEAT_S = 4.0


@dataclass(frozen=True)
class Setup:
    """How a replica trains."""

    group: str
    place: int = 0
    global_batch: int = 16
    until: int = 64
    replicas: int = 1
    outer: bool = False
    led: bool = True
    features: int = 6
    #: A method of `Exchange` at whose call it dies, once it has so many rounds behind it; or
    #: "ended", where it would tell that it has the round's result.
    dies_at: str | None = None
    dies_after: int = 1
    timeout_s: float = 20.0
    #: Where its parameters are: "plain", "offloaded", "host" (of a GPU); or in half precision, with
    #: the optimiser's in single precision in its "states" or as its own "parameters".
    weights: str = "plain"


@dataclass(frozen=True)
class Said:
    """What a replica tells."""

    what: str
    rounds: int = 0
    samples: int = 0
    replicas: int = 0
    done: int = 0
    plan: dict[str, Any] = field(default_factory=dict)
    optimizer_steps: int = 0
    learning_rate: float = 0.0
    #: Of its store.
    keys: int = 0
    state: dict[str, Any] = field(default_factory=dict, repr=False)
    text: str = ""

    @property
    def digest(self) -> str:
        """Bits of the model, parameters and buffers."""
        return digest(self.state)


def digest(state: dict[str, Any]) -> str:
    return hashlib.sha256(b"".join(value.tobytes() for value in state.values())).hexdigest()[:16]


def model(seed: int, features: int = 6) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(features, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 2))


class Replica:
    """A replica's process; ``with`` kills it if it still runs."""

    def __init__(self, setup: Setup) -> None:
        self.connection, theirs = _CONTEXT.Pipe()
        self.process = _CONTEXT.Process(
            target=_train, args=(setup, theirs, dict(os.environ)), daemon=True
        )
        self.process.start()
        theirs.close()
        self.said: list[Said] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()

    def step(self, samples: int, then: str | None = None) -> Said:
        """Let it train on so many samples; return what it has then, before they are counted."""
        self.connection.send(samples)
        trained = self.hear("step")
        if then is not None:
            self.hear(then)
        return trained

    def leave(self) -> None:
        """Let it leave the block."""
        self.connection.send(None)

    def hear(self, what: str) -> Said:
        """Return the next thing that it tells, which must be this one."""
        said = self.next()
        assert said.what == what, said
        return said

    def next(self) -> Said:
        """Return the next thing that it tells."""
        assert self.connection.poll(TIMEOUT_S), "says nothing"
        said: Said = self.connection.recv()
        self.said.append(said)
        return said

    def hear_all(self) -> list[Said]:
        """Return all that it tells until it ends."""
        try:
            while True:
                assert self.connection.poll(TIMEOUT_S), "says nothing and does not end"
                self.said.append(self.connection.recv())
        except (EOFError, ConnectionResetError):
            self.process.join(TIMEOUT_S)
            return self.said


def next_round(*replicas: Replica) -> list[Said]:
    """Return what each has after the next round, to which all come without doing anything."""
    found: dict[Connection, Said] = {}
    on_the_way = {replica.connection: replica for replica in replicas}
    while len(found) < len(replicas):
        ready = wait([each for each in on_the_way if each not in found], TIMEOUT_S)
        assert ready, "no round"
        for connection in ready:
            said = on_the_way[connection].next()
            if said.what == "round":
                found[connection] = said
            elif said.what == "counted":
                connection.send(0)
            else:
                assert said.what in {"step", "says"}, said
    return [found[connection] for connection in on_the_way]


class Lighthouse:
    """A lighthouse, which can be killed and started again."""

    def __init__(
        self, group: str, heartbeat_s: float = HEARTBEAT_S, host: str | None = None
    ) -> None:
        self._options = ["--group", group, "--heartbeat", str(heartbeat_s)]
        self._options += ["--host", host] if host is not None else []
        self.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        command = [sys.executable, "-m", "radt.training.lighthouse", *self._options]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        lines = iter(self.process.stderr)
        line = next(line for line in lines if "lighthouse of group" in line)
        (self.address,) = re.findall(r"http://[^\s,]+", line)
        threading.Thread(target=lambda: list(lines), daemon=True).start()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def started(stack: ExitStack, *setups: Setup) -> list[Replica]:
    """Return replicas that the stack ends."""
    return [stack.enter_context(Replica(setup)) for setup in setups]


def pair(stack: ExitStack, group: str, *, outer: bool = False) -> list[Replica]:
    """Return two replicas that have joined."""
    both = started(
        stack, *(Setup(group, place, replicas=2, outer=outer, until=10**6) for place in range(2))
    )
    joined = [replica.hear("joined") for replica in both]
    assert joined[0].digest == joined[1].digest  # that of the first one's model
    assert joined[0].plan == joined[1].plan
    return both


def let_leave(replicas: list[Replica]) -> None:
    """Have all leave their blocks, with the same model, and leave nothing behind."""
    for replica in replicas:
        replica.leave()
    ends = [replica.hear_all()[-2:] for replica in replicas]
    assert [[said.what for said in end] for end in ends] == [["end", "closed"]] * len(replicas)
    assert len({end[0].digest for end in ends}) == 1


def new_group() -> str:
    return uuid.uuid4().hex


def _train(setup: Setup, connection: Connection, environment: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    torch.set_num_threads(1)
    meeting.uuid4 = lambda: uuid.UUID(int=setup.place)  # the order of replicas
    averaging._LEAVE_S = 10 * TIMEOUT_S  # only what is there is waited for
    lighthouse._START_S = TIMEOUT_S
    # A lighthouse of a busy machine is slow, and not away; the others come late to a new one.
    meeting._BEAT_TIMEOUT = meeting._CONNECT_TIMEOUT = timedelta(seconds=TIMEOUT_S)
    meeting._HEARD_S = 3.0
    job, step = _training(setup)
    scheduler = torch.optim.lr_scheduler.StepLR(job.optimizer, 3, gamma=0.5)
    job.scheduler, job.schedule = scheduler, Each.STEP
    outer = partial(torch.optim.SGD, lr=0.7, momentum=0.9, nesterov=True) if setup.outer else None
    done = 0

    def tell(what: str, text: str = "") -> None:
        learned = job.learned_state()
        states = learned["optimizer"]["state"].values()
        steps = [int(state.get("step", 0)) for state in states]
        kept = {
            **learned["model"],
            **learned["others"],
            **{
                f"master.{at}": state["master"]
                for at, state in enumerate(states)
                if "master" in state
            },
        }
        exchange: Any = getattr(averager, "_exchange", None)
        store = None if exchange is None else exchange._own
        connection.send(
            Said(
                what,
                averager.rounds,
                averager.samples,
                averager.replicas,
                done,
                averager.plan,
                max(steps, default=0),
                job.optimizer.param_groups[0]["lr"],
                0 if store is None else store.num_keys(),
                {name: _array(value) for name, value in kept.items()},
                text,
            )
        )

    before = _left_behind()
    averager = ElasticAverager(
        job,
        global_batch=setup.global_batch,
        group=setup.group,
        replicas=setup.replicas,
        outer=outer,
        plan={"of": setup.place},
        timeout_s=setup.timeout_s,
    )
    meeting.say = lambda text: tell("says", text)
    if setup.dies_at is not None:
        _die_at(setup.dies_at, lambda: averager.rounds == setup.dies_after)
    torch.manual_seed(setup.place)
    try:
        with averager:
            tell("joined")
            while averager.samples < setup.until:
                samples = connection.recv() if setup.led else 4
                if samples is None:
                    break
                if samples:
                    inputs = torch.randn(samples, setup.features)
                    step((inputs, inputs[:, :2].sin()))
                    done += samples
                tell("step")
                tell("round" if averager.did(samples) else "counted")
    except Exception as error:  # noqa: BLE001 - the test judges it
        tell("error", f"{type(error).__name__}: {error}")
    else:
        tell("end")
    wait_until(lambda: _left_behind() == before, f"{_left_behind()} to be {before}")
    tell("closed")


def _array(value: Tensor) -> Any:
    is_half = value.dtype is torch.bfloat16  # which NumPy does not have
    return (value.float() if is_half else value).detach().numpy().copy()


def _training(setup: Setup) -> tuple[Job, Callable[[Any], Tensor]]:
    """Return the job of a replica, and what trains on a batch."""
    net, loss = model(setup.place, setup.features), nn.functional.mse_loss
    if setup.weights in ("offloaded", "host"):
        if setup.weights == "host":
            host_gpu.install(pytest.MonkeyPatch())
        sample = torch.zeros(16, setup.features), torch.zeros(16, 2)
        step = offload(
            net, optimizer_class=partial(torch.optim.Adam, lr=0.05), loss=loss, sample=sample,
            memory="1MB", accumulate=1,
        )  # fmt: skip
        for thread in (step._running()._loads, step._running()._updates):
            thread.submit(int).result()  # begin now: they are not the averager's
        return step.job, lambda batch: step([batch])
    if setup.weights == "plain":
        job = Job("net", net, torch.optim.Adam(net.parameters(), lr=0.05), loss)
        return job, job.step
    net = net.bfloat16()
    if setup.weights == "states":
        optimizer: torch.optim.Optimizer = Mastered(net.parameters(), {"lr": 0.05})
        update = optimizer.step
    else:
        own = list(net.parameters())
        masters = [nn.Parameter(each.detach().float()) for each in own]
        optimizer = torch.optim.SGD(masters, lr=0.05)

        def update() -> None:
            for master, each in zip(masters, own, strict=True):
                master.grad = None if each.grad is None else each.grad.float()
            optimizer.step()
            with torch.no_grad():
                for master, each in zip(masters, own, strict=True):
                    each.copy_(master)

    def trained(batch: Any) -> Tensor:
        inputs, target = (part.bfloat16() for part in batch)
        net.zero_grad()
        value = loss(net(inputs), target)
        value.backward()
        update()
        return value

    job = Job("net", net, optimizer, loss, step=trained)
    return job, job.step


class Mastered(torch.optim.Optimizer):
    """Keeps parameters of half precision in single precision, in its states."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        del closure
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state["master"] = parameter.float()
                state["master"].sub_(group["lr"] * parameter.grad.float())
                parameter.copy_(state["master"])


def _die_at(point: str, now: Callable[[], bool]) -> None:
    method = "count" if point == "ended" else point
    original = getattr(Exchange, method)

    def dying(self: Exchange, *arguments: Any) -> Any:
        telling = str(arguments).startswith("('ended/")
        if now() and telling == (point == "ended"):
            os.kill(os.getpid(), signal.SIGKILL)
        return original(self, *arguments)

    setattr(Exchange, method, dying)


def _left_behind() -> list[int]:
    """Return the numbers of threads, network sockets and child processes."""
    this = psutil.Process()
    # tokio keeps a pair of Unix sockets in every process that has used it once.
    return [this.num_threads(), len(this.net_connections("inet")), len(this.children())]


def mean_of(states: list[tuple[int, dict[str, Any]]], name: str) -> Tensor:
    """Return the weighted mean of a tensor in double precision."""
    total = sum(weight for weight, _ in states)
    parts = [torch.from_numpy(state[name]).double() * weight for weight, state in states]
    return torch.stack(parts).sum(0) / total
