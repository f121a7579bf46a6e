"""The lighthouse that the first replica starts: found by all, and gone with the last one."""

from __future__ import annotations

import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch
from torch import nn

from radt.errors import TrainingError
from radt.home import runtime_dir
from radt.training import ElasticAverager, Job, averaging, lighthouse_search
from radt.training.lighthouse_place import Known, Place, own_secret
from tests.support.averaging import (
    Lighthouse,
    Replica,
    Setup,
    let_leave,
    model,
    new_group,
    next_round,
    pair,
    started,
)
from tests.support.waiting import wait_until


def lighthouses(group: str) -> list[psutil.Process]:
    """Return the processes that are this group's lighthouse."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        command = process.info["cmdline"] or []
        if "radt.training.lighthouse" in command and group in command:
            found.append(process)
    return found


def known(group: str) -> Known | None:
    with closing(Place(group)) as place:
        return place.known()


def wait_until_nothing_is_left(group: str) -> None:
    wait_until(lambda: not lighthouses(group), "the lighthouse ends")
    wait_until(lambda: not list(runtime_dir().glob("lighthouse-*")), "its place is gone")


def train_a_round(*replicas: Replica) -> None:
    replicas[0].step(16)
    for replica in replicas[1:]:
        replica.step(0)
    ends = next_round(*replicas)
    assert len({end.digest for end in ends}) == 1
    assert {end.replicas for end in ends} == {len(replicas)}


def test_replicas_on_a_machine_need_no_lighthouse() -> None:
    group = new_group()
    with ExitStack() as stack:
        both = pair(stack, group)
        train_a_round(*both)
        assert len(lighthouses(group)) == 1
        (joiner,) = started(stack, Setup(group, 2, until=10**6))
        both[0].step(16)
        both[1].step(0)
        while next_round(*both)[0].replicas < 3:
            both[0].step(16)
            both[1].step(0)
        joiner.hear("joined")
        assert len(lighthouses(group)) == 1
        let_leave([*both, joiner])
        wait_until_nothing_is_left(group)


def test_survivors_start_it_again_when_it_is_killed_with_a_replica() -> None:
    """Whoever started it: a run that ends takes along what its process has started."""
    group = new_group()
    with ExitStack() as stack:
        both = pair(stack, group)
        starter = psutil.Process(lighthouses(group)[0].ppid()).pid
        killed = next(replica for replica in both if replica.process.pid == starter)
        survivor = next(replica for replica in both if replica is not killed)
        before = known(group)
        (first,) = lighthouses(group)
        killed.process.kill()
        first.kill()
        train_a_round(survivor)
        (second,) = lighthouses(group)
        assert second.pid != first.pid
        assert known(group) == before  # where others still ask
        let_leave([survivor])
        wait_until_nothing_is_left(group)


def test_a_service_takes_the_place_of_one_that_a_replica_started() -> None:
    group = new_group()
    with ExitStack() as stack:
        both = pair(stack, group)
        before = known(group)
        assert before is not None
        assert not before.is_service
        stack.enter_context(Lighthouse(group))
        assert known(group) == replace(before, is_service=True)
        wait_until(lambda: len(lighthouses(group)) == 1, "the first one ends")
        train_a_round(*both)
        command = [sys.executable, "-m", "radt.training.lighthouse", "--group", group]
        second = subprocess.run(command, capture_output=True, text=True, check=False)
        assert second.returncode == TrainingError.exit_code
        assert "has a lighthouse on this machine already" in second.stderr
        let_leave(both)


@pytest.mark.parametrize("host", [None, "127.0.0.2", "::1"])
def test_lighthouse_and_replicas_listen_at_one_address(host: str | None) -> None:
    group = new_group()
    with ExitStack() as stack:
        lighthouse = stack.enter_context(Lighthouse(group, host=host))
        assert listening(lighthouse.process.pid) == {host or "127.0.0.1"}
        both = pair(stack, group)  # on this machine they find it by the group's name
        train_a_round(*both)
        own = "::1" if host == "::1" else "127.0.0.1"
        for replica in both:
            assert replica.process.pid is not None
            assert listening(replica.process.pid) == {own}
        let_leave(both)


def test_the_replicas_of_a_machine_have_one_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RADT_RUNTIME_DIR", str(tmp_path / "runtime"))
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(lambda _: own_secret(), range(64)))
    assert [len(secret) for secret in found] == [64]
    (path,) = (tmp_path / "runtime").iterdir()
    assert path.stat().st_mode & 0o777 == 0o600


def listening(pid: int) -> set[str]:
    """Return the addresses that a process listens at."""
    connections = psutil.Process(pid).net_connections("inet")
    return {each.laddr.ip for each in connections if each.status == psutil.CONN_LISTEN}


def job() -> Job:
    net = model(0)
    return Job("net", net, torch.optim.SGD(net.parameters(), 0.1), nn.functional.mse_loss)


@pytest.mark.parametrize(
    ("program", "message"),
    [("/nowhere/python", "cannot be started"), (shutil.which("false"), "ended with exit code 1")],
)
def test_one_that_cannot_be_started_is_one_error(
    program: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lighthouse_search.sys, "executable", program)
    with (
        pytest.raises(TrainingError, match=message),
        ElasticAverager(job(), global_batch=8, group=new_group()),
    ):
        pass


def test_who_is_missing_is_said_and_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replicas on another machine without the address would wait for one another for ever."""

    class ToldError(Exception):
        pass

    def tell(text: str) -> None:
        raise ToldError(text)

    group = new_group()
    monkeypatch.setattr(averaging, "say", tell)
    monkeypatch.setattr(averaging, "_PATIENCE_S", 0.0)
    with (
        pytest.raises(ToldError, match=r"1 of 2 replicas .* for this machine's replicas only"),
        ElasticAverager(job(), global_batch=8, group=group, replicas=2),
    ):
        pass
    assert not lighthouses(group)
    wait_until_nothing_is_left(group)
