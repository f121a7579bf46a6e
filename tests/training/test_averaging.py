"""`ElasticAverager` with real processes and a real lighthouse: averages, joins, deaths."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from datetime import timedelta
from pathlib import Path

import psutil
import pytest
import torch
from torch import nn

from radt.errors import TrainingError, UsageError
from radt.home import runtime_dir
from radt.training import ElasticAverager, Job, averaging, lighthouse, meeting
from radt.training.exchange import Exchange, cause_of
from radt.training.lighthouse import answering
from radt.training.meeting import Attendance, Presence
from tests.support.averaging import (
    SHORT_HEARTBEAT_S,
    Lighthouse,
    Setup,
    let_leave,
    mean_of,
    model,
    new_group,
    next_round,
    pair,
    started,
)
from tests.support.waiting import TIMEOUT_S

PARAMETERS = [name for name, _ in model(0).named_parameters()]


@pytest.fixture
def group() -> Iterator[str]:
    name = new_group()
    with Lighthouse(name):
        yield name


@pytest.fixture
def shrinking() -> Iterator[str]:
    """A group that some leave while others go on."""
    name = new_group()
    with Lighthouse(name, SHORT_HEARTBEAT_S):
        yield name


@pytest.mark.quick_variants(1)
@pytest.mark.parametrize("outer", [False, True], ids=["local SGD", "DiLoCo"])
def test_the_mean_is_weighted_by_samples_and_equal_in_all(group: str, outer: bool) -> None:
    with ExitStack() as stack:
        one, other = pair(stack, group, outer=outer)
        anchor = [
            nn.Parameter(torch.from_numpy(one.said[0].state[name].copy())) for name in PARAMETERS
        ]
        moving = torch.optim.SGD(anchor, lr=0.7, momentum=0.9, nesterov=True)
        for samples_of_one, samples_of_other in ((12, 6), (3, 14)):
            mine = one.step(samples_of_one, then="counted").state
            theirs = other.step(samples_of_other).state  # now all have done enough
            one.step(0)
            ends = next_round(one, other)
            assert ends[0].digest == ends[1].digest
            states = [(samples_of_one, mine), (samples_of_other, theirs)]
            for parameter, name in zip(anchor, PARAMETERS, strict=True):
                parameter.grad = parameter.detach() - mean_of(states, name).float()
            moving.step()
            for parameter, (name, value) in zip(
                [*anchor, *[None] * 3], ends[0].state.items(), strict=False
            ):
                expected = mean_of(states, name)
                if outer and name in PARAMETERS:
                    parameter = anchor[PARAMETERS.index(name)]
                    expected = parameter.detach().double()
                torch.testing.assert_close(
                    torch.from_numpy(value).double(),
                    expected.round() if value.dtype == "int64" else expected,
                    rtol=1e-5,
                    atol=1e-6,
                )
        assert [ends[0].rounds, ends[0].samples] == [2, 35]
        let_leave([one, other])


@pytest.mark.quick_variants(2)
@pytest.mark.parametrize("weights", ["offloaded", "host", "states", "parameters"])
def test_weights_are_averaged_wherever_they_are(group: str, weights: str) -> None:
    """And training goes on with the mean: the next step does not bring back what was before it."""
    with ExitStack() as stack:
        setups = [Setup(group, at, replicas=2, until=10**6, weights=weights) for at in range(2)]
        both = started(stack, *setups)
        joined = [replica.hear("joined") for replica in both]
        assert joined[0].digest == joined[1].digest
        is_half = weights in ("states", "parameters")
        tolerance = 1e-2 if is_half else 1e-5
        for _ in range(3):
            mine = both[0].step(12, then="counted").state
            theirs = both[1].step(6).state
            both[0].step(0)
            ends = next_round(*both)
            assert ends[0].digest == ends[1].digest
            assert any((mine[name] != theirs[name]).any() for name in PARAMETERS)
            for name in [name for name in mine if not name.endswith("num_batches_tracked")]:
                mean = mean_of([(12, mine), (6, theirs)], name).float()
                found = torch.from_numpy(ends[0].state[name])
                torch.testing.assert_close(found, mean, rtol=tolerance, atol=tolerance)
            # What the next step writes into the parameters is the mean, and not what was before it.
            masters = [name for name in mine if name.startswith(("master", "optimizer"))]
            assert bool(masters) is is_half
            for name, master in zip(PARAMETERS, masters, strict=False):
                rounded = torch.from_numpy(ends[0].state[master]).bfloat16().float()
                own = torch.from_numpy(ends[0].state[name])
                torch.testing.assert_close(own, rounded, rtol=tolerance, atol=tolerance)
        let_leave(both)


def test_a_replica_that_did_nothing_changes_nothing(shrinking: str) -> None:
    with ExitStack() as stack:
        one, other = pair(stack, shrinking)
        before = other.step(3, then="counted")
        other.leave()  # it calls the other one to a round of what is pending
        assert one.step(0).digest != before.digest
        assert next_round(one)[0].digest == before.digest
        assert [said.digest for said in other.hear_all()][-2:] == [before.digest] * 2
        alone = one.step(17)
        assert next_round(one)[0].digest == alone.digest  # not even rounded
        let_leave([one])


def test_a_replica_that_joins_gets_model_optimizer_scheduler_and_plan(group: str) -> None:
    with ExitStack() as stack:
        first = pair(stack, group)
        for _ in range(3):
            first[0].step(16)
            first[1].step(0)
            ends = next_round(*first)
        (joiner,) = started(stack, Setup(group, 2, until=10**6))
        samples = ends[0].samples
        while ends[0].replicas < 3:  # at the first round after it has come
            first[0].step(16)
            first[1].step(0)
            ends = next_round(*first)
            samples += 16
        joined = joiner.hear("joined")
        assert joined.digest == ends[0].digest
        assert [joined.rounds, joined.samples] == [ends[0].rounds, samples]
        assert joined.plan == ends[0].plan != {"of": 2}
        assert joined.optimizer_steps == ends[0].optimizer_steps > 0
        assert joined.learning_rate == ends[0].learning_rate < 0.05
        everyone = [*first, joiner]
        for replica, samples in zip(everyone, (0, 0, 16), strict=True):
            replica.step(samples)
        ends = next_round(*everyone)
        assert len({said.digest for said in ends}) == 1
        let_leave(everyone)


@pytest.mark.quick_variants(1)
@pytest.mark.parametrize(
    ("place", "point"), [(0, "count"), (2, "connect"), (2, "sum"), (0, "confirm")]
)
def test_after_a_kill_the_others_repeat_at_most_that_round(
    shrinking: str, place: int, point: str
) -> None:
    after, timeout_s = (0, 8.0) if point == "connect" else (1, 20.0)  # which the others wait for
    common = Setup(shrinking, replicas=3, until=100, led=False, timeout_s=timeout_s)
    with ExitStack() as stack:
        replicas = started(
            stack,
            *(
                Setup(
                    **{
                        **vars(common),
                        "place": at,
                        "dies_after": after,
                        "dies_at": point if at == place else None,
                    }
                )
                for at in range(3)
            ),
        )
        for replica in replicas:
            replica.hear_all()
        killed = replicas.pop(place)
        assert killed.process.exitcode == -9
        ends = [replica.said[-2] for replica in replicas]
        assert [end.what for end in ends] == ["end", "end"]
        assert ends[0].digest == ends[1].digest
        assert ends[0].samples == ends[1].samples >= 100
        # Nothing of the survivors is lost, and of the killed one what it did in that round.
        rounds = [said for said in killed.said if said.what == "round"]
        kept = rounds[-1].done if rounds else 0
        assert sum(end.done for end in ends) + kept == ends[0].samples


@pytest.mark.quick_variants(1)
@pytest.mark.parametrize("killed", [0, 1])
def test_leaving_does_not_wait_for_a_replica_that_was_killed(shrinking: str, killed: int) -> None:
    """Not even the one whose store has the counts."""
    with ExitStack() as stack:
        replicas = started(
            stack,
            *(
                Setup(
                    shrinking,
                    place,
                    until=16,
                    replicas=2,
                    led=False,
                    dies_at="ended" if place == killed else None,
                )
                for place in range(2)
            ),
        )
        ends = [replica.hear_all() for replica in replicas]
        assert replicas[killed].process.exitcode == -9
        assert [said.what for said in ends[1 - killed]][-2:] == ["end", "closed"]


def test_the_store_does_not_grow_with_rounds(group: str) -> None:
    with ExitStack() as stack:
        both = pair(stack, group)
        keys = []
        for _ in range(8):
            both[0].step(16)
            both[1].step(0)
            keys.append(next_round(*both)[0].keys)
        assert max(keys[1:]) <= keys[0] + 1  # the other one has told that it has the result, or not
        let_leave(both)


@pytest.mark.quick_variants(1)
@pytest.mark.parametrize("is_local", [True, False], ids=["found by name", "given address"])
def test_rounds_wait_for_a_lighthouse_that_is_started_again(
    is_local: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = new_group()
    with ExitStack() as stack:
        beacon = stack.enter_context(Lighthouse(own))
        if not is_local:
            monkeypatch.setenv(lighthouse.ADDRESS_VARIABLE, beacon.address)
        one, other = pair(stack, own)
        for again in range(2):
            mine = one.step(12, then="counted").state
            beacon.kill()
            theirs = other.step(4).state
            assert "the round waits" in other.hear("says").text
            if is_local and again:  # it gets another port, and replicas follow
                (note,) = runtime_dir().glob("lighthouse-*")
                note.unlink()
            beacon.start()
            one.step(0)
            ends = next_round(one, other)
            assert ends[0].digest == ends[1].digest
            assert ends[0].samples == 16 * (again + 1)
            for name in PARAMETERS:
                torch.testing.assert_close(
                    torch.from_numpy(ends[0].state[name]).double(),
                    mean_of([(12, mine), (4, theirs)], name),
                    rtol=1e-5,
                    atol=1e-6,
                )
        let_leave([one, other])


def test_a_lighthouse_that_fails_each_round_is_one_error(
    group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(meeting, "_HEARD_S", 0.1)
    monkeypatch.setattr(meeting, "_BEAT_TIMEOUT", timedelta(seconds=TIMEOUT_S))
    monkeypatch.setattr(meeting, "say", told.append)
    with closing(Attendance(answering(group), group)) as one:
        more_than_it_reads = "x" * 5_000_000
        with pytest.raises(TrainingError, match="is there, and failed 3 times to begin a round"):
            one.next_round(Presence(one.replica, "", "", 0, 0, "", 0, more_than_it_reads))
    assert ["is asked again" in text for text in told] == [True, True]


def test_a_client_that_cannot_be_made_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(meeting, "_CONNECT_TIMEOUT", timedelta(seconds=0.2))
    with pytest.raises(TrainingError, match=r"at http://127\.0\.0\.1:1 cannot be used"):
        Attendance("http://127.0.0.1:1", "gpt")
    assert "radt-heartbeat" not in {thread.name for thread in threading.enumerate()}


def test_another_model_is_refused_and_the_group_goes_on(shrinking: str) -> None:
    with ExitStack() as stack:
        (one,) = started(stack, Setup(shrinking, 0, until=10**6))
        one.hear("joined")
        (other,) = started(stack, Setup(shrinking, 1, features=7))
        said = []
        while not other.process.exitcode and not said:
            one.step(16)
            if next_round(one)[0].replicas == 2:
                said = other.hear_all()
        assert [item.what for item in said] == ["error", "closed"]
        assert "TrainingError: this replica has global_batch 16, model" in said[0].text
        one.step(16)
        assert next_round(one)[0].replicas == 1
        let_leave([one])


def _job() -> Job:
    net = model(0)
    return Job("net", net, torch.optim.SGD(net.parameters(), 0.1), nn.functional.mse_loss)


@pytest.mark.parametrize(
    ("address", "where"),
    [("http://127.0.0.1:1", r"at http://127\.0\.0\.1:1"), (None, "on this machine")],
)
def test_without_a_lighthouse_there_is_one_error(
    address: str | None, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lighthouse, "_START_S", 0.5)
    group = new_group()
    with (
        pytest.raises(TrainingError, match=f"answers {where} within") as raised,
        ElasticAverager(_job(), global_batch=8, group=group, lighthouse=address),
    ):
        pass
    assert f"python -m radt.training.lighthouse --group {group}" in str(raised.value)


def test_who_is_missing_is_said(group: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replicas on another machine without the address would wait for one another for ever."""

    class ToldError(Exception):
        pass

    def tell(text: str) -> None:
        raise ToldError(text)

    monkeypatch.setattr(averaging, "say", tell)
    monkeypatch.setattr(averaging, "_PATIENCE_S", 0.0)
    with (
        pytest.raises(ToldError, match=r"1 of 2 replicas .* for this machine's replicas only"),
        ElasticAverager(_job(), global_batch=8, group=group, replicas=2),
    ):
        pass


@pytest.mark.quick_variants(1)
@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1"])
def test_lighthouse_and_replicas_listen_at_one_address(host: str) -> None:
    own_group = new_group()
    with ExitStack() as stack:
        beacon = stack.enter_context(Lighthouse(own_group, host=host))
        assert _listening(beacon.process.pid) == {host}
        both = pair(stack, own_group)  # on this machine they find it by the group's name
        own = "::1" if host == "::1" else "127.0.0.1"
        for replica in both:
            assert replica.process.pid is not None
            assert _listening(replica.process.pid) == {own}
        command = [sys.executable, "-m", "radt.training.lighthouse", "--group", own_group]
        second = subprocess.run(command, capture_output=True, text=True, check=False)
        assert second.returncode == TrainingError.exit_code
        assert "has a lighthouse on this machine already, at" in second.stderr
        let_leave(both)


def _listening(pid: int) -> set[str]:
    """Return the addresses that a process listens at."""
    connections = psutil.Process(pid).net_connections("inet")
    return {each.laddr.ip for each in connections if each.status == psutil.CONN_LISTEN}


def test_an_empty_address_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(lighthouse.ADDRESS_VARIABLE, "")
    assert lighthouse.address_of(new_group()) == ""


def test_a_lighthouse_that_ends_leaves_nothing_behind() -> None:
    own = new_group()
    with Lighthouse(own) as beacon:
        assert lighthouse.address_of(own) == beacon.address
        libraries = Path(f"/proc/{beacon.process.pid}/maps").read_text()
        assert "_torchft" in libraries
        assert "libtorch" not in libraries, "a lighthouse needs no PyTorch"
        beacon.process.terminate()
        beacon.process.wait()
        assert lighthouse.address_of(own) == ""
        assert not list(runtime_dir().glob("lighthouse-*"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"global_batch": 0, "group": "gpt"}, "global_batch is 0"),
        ({"global_batch": 8, "group": ""}, "the group has no name"),
        ({"global_batch": 8, "group": "gpt", "replicas": 0}, "replicas is 0"),
        ({"global_batch": 8, "group": "gpt", "lighthouse": "nowhere"}, "nowhere"),
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ElasticAverager(_job(), **arguments)


def test_complex_parameters_are_refused() -> None:
    """Their sums would be those of the real parts."""
    net = nn.Linear(2, 2)
    net.register_buffer("phase", torch.zeros(2, dtype=torch.complex64))
    job = Job("one", net, torch.optim.SGD(net.parameters(), lr=0.1), nn.functional.mse_loss)
    with pytest.raises(UsageError, match="phase of the model is complex"):
        ElasticAverager(job, global_batch=8, group="gpt")


def test_a_connection_to_the_store_that_broke_is_made_again() -> None:
    """As after a pause of the network: the store's replica lives."""
    own, peer = Exchange("127.0.0.1", 60.0), Exchange("127.0.0.1", 60.0)
    try:
        before = set(os.listdir("/proc/self/fd"))
        peer.use_store(own.address)
        assert peer.count("samples", 1) == 1
        _break({int(number) for number in os.listdir("/proc/self/fd") if number not in before})
        assert peer.count("samples", 1) is None
        peer.use_store(own.address)
        assert peer.count("samples", 1) == 2
    finally:
        peer.close()
        own.close()


def test_a_peer_that_is_gone_is_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    """Not a page of PyTorch's C++ frames on standard error."""
    own, peer = Exchange("127.0.0.1", 60.0), Exchange("127.0.0.1", 60.0)
    peer.use_store(own.address)
    peer.count("samples", 1)
    own.close()
    with pytest.raises(RuntimeError) as gone:
        peer.wait(["samples"], 1.0)
    assert peer.count("samples", 1) is None
    peer.close()
    assert "frame #" not in capfd.readouterr().err
    assert "\n" not in cause_of(gone.value)
    gloo = RuntimeError(
        "[/w/gloo/tcp/pair.cc:537] Read error [::1]:5. This is typically caused\nby"
    )
    assert cause_of(gloo) == "Read error [::1]:5"


def _break(descriptors: set[int]) -> None:
    for number in descriptors:
        try:
            with socket.socket(fileno=os.dup(number)) as connection:
                connection.shutdown(socket.SHUT_RDWR)
        except OSError:  # no socket, or gone: that of the listing
            continue


@pytest.mark.parametrize("address", ["localhost:29510", "http://localhost", "http://here:there"])
def test_an_address_in_the_environment_is_checked(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lighthouse, "_START_S", 0.1)
    monkeypatch.setenv(lighthouse.ADDRESS_VARIABLE, address)
    with (
        pytest.raises(UsageError, match="expected http://HOST:PORT"),
        ElasticAverager(_job(), global_batch=8, group="gpt"),
    ):
        pass


def test_samples_are_counted_within_the_block() -> None:
    averager = ElasticAverager(_job(), global_batch=8, group="gpt")
    with pytest.raises(UsageError, match="samples is -1"):
        averager.did(-1)
    with pytest.raises(UsageError, match="not in use"):
        averager.did(1)
