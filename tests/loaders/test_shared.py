"""`SharedLoader`: all consumers get the loader's batches, whoever comes, goes and is slow."""

from __future__ import annotations

import gc
import io
import json
import os
import random
import subprocess
import sys
import threading
from base64 import b64encode
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from radt.loaders import SharedLoader
from radt.loaders.scope import scoped
from radt.loaders.shared import randomness, session
from radt.loaders.shared.membership import Join
from radt.loaders.shared.starting import start_server
from tests.support.shared_loading import (
    Consumer,
    Taker,
    cut,
    epoch_of,
    expected,
    flat,
    left_flag,
    make_growing,
    make_random,
    make_slow_to_begin,
    make_slow_to_leave,
    message_waits,
    name_of_its_own,
    server_of,
    shared,
)
from tests.support.waiting import alive, wait_until

pytestmark = pytest.mark.usefixtures("forked_servers")
few = settings(max_examples=max(4, settings().max_examples // 6))


@few
@given(
    samples=st.one_of(st.integers(0, 3), st.integers(4, 60)),
    batch_size=st.integers(1, 8),
    drop_last=st.booleans(),
    own_sizes=st.lists(st.none() | st.integers(1, 20), min_size=1, max_size=5),
    buffer=st.integers(1, 3),
    data=st.data(),
)
def test_every_consumer_gets_each_sample_once_in_the_loaders_order(
    samples: int,
    batch_size: int,
    drop_last: bool,
    own_sizes: list[int | None],
    buffer: int,
    data: st.DataObject,
) -> None:
    options = {"name": name_of_its_own(), "buffer": buffer, "arguments": {"drop_last": drop_last}}
    # Scripts that keep batches, not the same ones, do not stop the others and see no change.
    keeps = [
        data.draw(st.frozensets(st.integers(0, 8), max_size=3), label="kept") for _ in own_sizes
    ]
    takers = [
        Taker(shared(samples, batch_size, own_size=size, **options), 2, keep)
        for size, keep in zip(own_sizes, keeps, strict=True)
    ]
    for taker in takers:
        taker.start()
    for taker, size in zip(takers, own_sizes, strict=True):
        for epoch, got in enumerate(taker.result()):
            order = flat(expected(samples, batch_size, epoch, drop_last))
            assert got == cut(order, size or batch_size)
            assert taker.lengths[epoch] == len(got)
        for tensors, content in taker.kept:
            assert tensors.flatten().tolist() == content


def test_losses_of_a_training_are_those_of_the_plain_loader() -> None:
    torch.set_num_threads(1)
    arguments = {"samples": 50, "batch_size": 8}

    def losses(loader: Any) -> list[float]:
        torch.manual_seed(3)
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.3), torch.nn.Tanh())
        optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
        found = []
        for _ in range(3):
            for tensors, indices in loader:
                loss = ((model(tensors).sum(1) - indices) ** 2).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                found.append(loss.item())
        return found

    with SharedLoader(make_random, name=name_of_its_own(), arguments=arguments) as loader:
        assert losses(loader) == losses(make_random(**arguments))


def test_batches_are_the_loaders_bit_by_bit_with_everything_beside_the_tensors() -> None:
    with SharedLoader(make_growing, name=name_of_its_own(), linger_s=0.1) as loader:
        assert len(loader) == 6
        for _ in range(2):
            kept = list(loader)
            for got, want in zip(kept, make_growing(), strict=True):
                assert got["x"].dtype == want["x"].dtype
                assert torch.equal(got["x"], want["x"])
                assert (got["names"], got["n"]) == (want["names"], want["n"])


def test_a_consumer_is_ahead_of_another_by_no_more_than_the_buffer() -> None:
    name, buffer = name_of_its_own(), 2
    with shared(40, 1, name=name, buffer=buffer) as slow:
        other = shared(40, 1, name=name, buffer=buffer)
        slow_batches = iter(slow)
        fast = Taker(other, batches=iter(other))  # both have asked before either goes on
        fast.start()
        wait_until(lambda: fast.indices or not fast.is_alive(), "the other one's epoch")
        for given_already in range(40):
            held = next(slow_batches)
            assert held[1].tolist() == expected(40, 1)[given_already]
            # While this one holds the batch, the others get `buffer` more.
            assert len(fast.indices[0]) <= given_already + 1 + buffer
            fast.wait_for(min(40, given_already + 1 + buffer))
        assert next(slow_batches, None) is None
        fast.result()


def test_the_loop_after_one_that_was_left_at_its_end_is_the_next_epoch() -> None:
    with shared(10, 2, buffer=3) as loader:
        for epoch, count in enumerate((5, 4, 5, 3)):
            batches = iter(loader)
            for order in expected(10, 2, epoch)[:count]:
                assert next(batches)[1].tolist() == order
            # Left with what is unread: the rest, which fits into the buffer, and the end.
            wait_until(lambda: message_waits(loader), "the server's next message")


def test_own_transform_and_own_writes_are_nobody_elses() -> None:
    name = name_of_its_own()
    with shared(9, 2, name=name, transform=lambda batch: batch[1] * 10) as ten:
        other = Taker(shared(9, 2, name=name))
        other.start()
        assert [i for batch in ten for i in batch.tolist()] == [
            10 * i for i in flat(expected(9, 2))
        ]
        assert other.result() == [expected(9, 2)]


def test_what_comes_late_joins_as_it_asks() -> None:
    name = name_of_its_own()
    with shared(20, 2, name=name, join=Join.WINDOW, buffer=3) as first:
        batches = iter(first)
        begun = [next(batches)[1].tolist() for _ in range(3)]
        window = Taker(shared(20, 2, name=name, join="window"))
        now = Taker(shared(20, 2, name=name, join="now"))
        late = shared(20, 2, name=name, join="epoch")
        following = Taker(late, batches=iter(late))  # it has asked
        for taker in (window, now, following):
            taker.start()
        wait_until(lambda: window.loader._begun and now.loader._begun, "both to be in the epoch")
        wait_until(lambda: window.indices[0], "the window's batches")
        begun += [batch[1].tolist() for batch in batches]
        assert window.result() == [begun] == [expected(20, 2)]
        assert not window.loader.partial
        [rest] = now.result()
        assert rest and rest == begun[-len(rest) :]
        assert now.loader.partial
        assert len(rest) < len(begun)
        assert epoch_of(first) == expected(20, 2, epoch=1)
    assert following.result() == [expected(20, 2, epoch=1)]
    assert following.loader.epoch == 2  # the epochs are the server's


def test_nobody_joins_an_epoch_whose_rest_nobody_wanted(tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    options: dict[str, Any] = {"name": name_of_its_own(), "arguments": {"flag": str(flag)}}
    with SharedLoader(make_slow_to_leave, **options) as first:
        next(iter(first))  # and the loop is left
        with SharedLoader(make_slow_to_leave, join="now", **options) as late:
            first.close()
            wait_until(left_flag(flag).exists, "the server to leave the loop")
            batches = iter(late)
            SharedLoader(make_slow_to_leave, **options).close()  # it was answered after that
            flag.touch()
            assert [int(batch) for batch in batches] == list(range(20))
            assert not late.partial


def test_who_resumes_while_a_later_position_is_made_again_gets_its_rest(tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    options: dict[str, Any] = {"name": name_of_its_own(), "arguments": {"flag": str(flag)}}
    with SharedLoader(make_slow_to_begin, **options) as later:
        state = later.state_dict()
        later.load_state_dict(state | {"batch": 10})
        assert len(later) == 20  # it is ready, and alone
        later_batches = iter(later)
        wait_until(lambda: message_waits(later), "the beginning of its epoch")
        with SharedLoader(make_slow_to_begin, **options) as earlier:
            earlier.load_state_dict(state | {"batch": 7})
            assert len(earlier) == 20
            earlier_batches = iter(earlier)
            wait_until(lambda: message_waits(earlier), "the beginning of its epoch")
            flag.touch()
            for number in range(7, 20):
                assert int(next(earlier_batches)) == number
                if number >= 10:
                    assert int(next(later_batches)) == number


def test_a_window_is_as_large_as_its_bytes() -> None:
    name = name_of_its_own()
    with shared(60, 2, name=name, join="window", window_bytes=4096 * 3) as first:
        batches = iter(first)
        for _ in range(8):
            next(batches)
        late = Taker(shared(60, 2, name=name, join="window"))
        late.start()
        wait_until(lambda: late.indices, "its loop")
        assert len(list(batches)) == 22
        assert epoch_of(first) == expected(60, 2, epoch=1)
    assert late.result() == [expected(60, 2, epoch=1)]


def test_a_window_may_have_more_batches_than_a_socket_takes_messages() -> None:
    name = name_of_its_own()
    with shared(1500, 1, name=name, join="window") as first:
        batches = iter(first)
        begun = [next(batches)[1].tolist() for _ in range(1400)]
        late = Taker(shared(1500, 1, name=name, join="window"))
        late.start()
        wait_until(lambda: late.indices and late.indices[0], "the window's batches")
        begun += [batch[1].tolist() for batch in batches]
        assert late.result() == [begun] == [expected(1500, 1)]


def test_a_position_goes_on_in_a_new_server_with_the_same_random_numbers() -> None:
    arguments = {"samples": 30, "batch_size": 4, "workers": 0}

    def opened() -> SharedLoader:
        return SharedLoader(make_random, name=name_of_its_own(), arguments=arguments, linger_s=0.1)

    with opened() as loader:
        batches = []
        for epoch in range(3):
            for number, (tensors, indices) in enumerate(loader):
                batches.append((tensors.tolist(), indices.tolist()))
                if (epoch, number) == (1, 4):
                    state = loader.state_dict()
    with opened() as loader:
        loader.load_state_dict(state)
        rest = [(t.tolist(), i.tolist()) for _ in range(2) for t, i in loader]
    assert rest == batches[8 + 5 :]


def test_random_states_that_an_earlier_radt_saved_are_restored() -> None:
    name, keys, *rest = np.random.get_state(legacy=True)
    states = {
        "python": random.getstate(),
        "numpy": (name, torch.from_numpy(keys.astype(np.int64)), *rest),
        "torch": torch.get_rng_state(),
        "loader": [],
    }
    torch.save(states, file := io.BytesIO())
    drawn = (random.random(), np.random.random(), torch.rand(()).item())
    text = b64encode(file.getvalue()).decode()
    randomness.restore({"states": text, "draws_seed": False}, object())
    assert (random.random(), np.random.random(), torch.rand(()).item()) == drawn


def test_orders_are_those_of_a_plain_loader_whether_workers_live_on_or_are_new() -> None:
    arguments = {"samples": 30, "batch_size": 4, "workers": 2, "persistent": True}

    def opened() -> SharedLoader:
        return SharedLoader(make_random, name=name_of_its_own(), arguments=arguments, linger_s=0.1)

    def orders(loader: Any, epochs: int) -> list[list[list[int]]]:
        return [[indices.tolist() for _, indices in loader] for _ in range(epochs)]

    expected_orders = orders(make_random(**arguments), 3)
    with opened() as loader:
        found = orders(loader, 1)
        state = loader.state_dict()
        assert found + orders(loader, 2) == expected_orders
        loader.set_epoch(0)  # its workers live, and drew no second seed
        assert orders(loader, 2) == expected_orders[:2]
    with opened() as loader:
        loader.load_state_dict(state)  # its workers are new
        assert orders(loader, 2) == expected_orders[1:]


def test_batches_outlive_their_loader_while_others_go_on() -> None:
    name = name_of_its_own()
    with shared(40, 2, name=name) as loader:
        with shared(40, 2, name=name) as other:
            batches, others = iter(loader), iter(other)
            next(batches)
            kept = next(others)
        assert [b[1].tolist() for b in batches] == expected(40, 2)[1:]
        assert kept[1].tolist() == expected(40, 2)[0]


@pytest.mark.long
def test_thirty_two_consumers() -> None:
    name = name_of_its_own()
    takers = [Taker(shared(50, 4, name=name), epochs=2) for _ in range(32)]
    for taker in takers:
        taker.start()
    for taker in takers:
        assert taker.result() == [expected(50, 4), expected(50, 4, epoch=1)]


def test_two_names_are_two_loaders() -> None:
    with shared(7, 2) as one, shared(5, 2) as other:
        pairs = zip(one, other, strict=False)
        assert [(a[1].tolist(), b[1].tolist()) for a, b in pairs] == list(
            zip(expected(7, 2), expected(5, 2), strict=False)
        )


def test_consumers_in_processes_of_their_own() -> None:
    name = name_of_its_own()
    consumers = [Consumer(name, 12, 2) for _ in range(3)]
    for consumer in consumers:
        consumer.tell("ask")
        consumer.answer()
    for batch in expected(12, 2):
        for consumer in consumers:
            consumer.tell("take")
        assert [consumer.answer() for consumer in consumers] == [batch] * 3
    for consumer in consumers:
        consumer.end()


def test_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "start_server", start_server)  # as users do

    def open_things() -> tuple[Any, ...]:
        gc.collect()
        process = psutil.Process()
        maps = [m for m in process.memory_maps(grouped=False) if "radt-loader" in m.path]
        return process.num_fds(), len(maps)

    def wait_for_threads() -> None:
        """Wait for the threads that wait for servers, those of earlier tests included."""
        wait_until(
            lambda: all(not thread.name.startswith("child-") for thread in threading.enumerate()),
            "the end of the servers' threads",
        )

    def use(workers: int) -> None:
        """Share a loader and wait for the end of all that it was."""
        with shared(9, 2, arguments={"workers": workers}) as loader:
            next(iter(loader))
            server = psutil.Process(server_of(loader))
            processes = {server.pid}
            for batch in loader:
                kept = batch
                processes |= {child.pid for child in server.children(recursive=True)}
        assert len(processes) == 1 + workers
        assert kept[1].tolist()
        wait_until(lambda: not any(map(alive, processes)), "the server's end")
        wait_for_threads()

    wait_for_threads()
    use(0)  # torch and Python open things at their first use
    before = open_things()
    use(2)
    use(0)
    now = open_things()
    assert all(count <= earlier for count, earlier in zip(now, before, strict=True)), (now, before)
    runtime = Path(os.environ["RADT_RUNTIME_DIR"])
    assert not list(runtime.iterdir())


def test_a_service_that_comes_late_takes_over_from_the_server_of_a_consumer() -> None:
    name = name_of_its_own()
    own = shared(40, 1, name=name)
    first, batches = server_of(own), iter(own)
    other = Taker(shared(40, 1, name=name))
    other.start()
    taken = [next(batches)[1].tolist() for _ in range(5)]
    service = subprocess.Popen(
        [
            *(sys.executable, "-m", "radt.loaders.serve"),
            *("tests.support.shared_loading:make_planned", "--name", name),
            *("--arguments", '{"samples": 40, "batch_size": 1}'),
        ],
        cwd=Path(__file__).parents[2],
    )
    try:
        wait_until(lambda: not alive(first), "the end of the consumer's server")
        taken += [batch[1].tolist() for batch in batches]
        assert server_of(own) == service.pid
        assert taken == expected(40, 1)
        assert other.result() == [expected(40, 1)]
    finally:
        own.close()
        service.terminate()
        code = service.wait()
    assert code == 0


def test_a_service_is_there_before_its_consumers_and_ends_when_it_is_told() -> None:
    name = name_of_its_own()
    place = "tests.support.shared_loading:make_planned"
    arguments = ["--arguments", '{"samples": 9, "batch_size": 2}']
    service = subprocess.Popen(
        [sys.executable, "-m", "radt.loaders.serve", place, "--name", name, *arguments],
        cwd=Path(__file__).parents[2],
    )
    listening = f"@radt-loader-{scoped(name)}"
    wait_until(lambda: listening in Path("/proc/net/unix").read_text(), "the service's socket")
    try:
        second = subprocess.run(
            [sys.executable, "-m", "radt.loaders.serve", place, "--name", name, *arguments],
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            check=False,
        )
        assert second.returncode == 1
        assert "has a service already" in second.stderr
        for _ in range(2):
            with shared(9, 2, name=name) as loader:
                loader.set_epoch(0)
                assert epoch_of(loader) == expected(9, 2)
                assert server_of(loader) == service.pid
    finally:
        service.terminate()
        code = service.wait()
    assert code == 0


SCRIPT = """
import dataclasses, sys
import torch
from collections import namedtuple
from torch.utils.data import DataLoader
from transformers import BatchEncoding
from radt.loaders import SharedLoader

Target = namedtuple("Target", "label length")

@dataclasses.dataclass
class Sample:
    text: BatchEncoding
    target: Target

def collate(texts):
    longest = max(map(len, texts))
    ids = torch.tensor([text + [0] * (longest - len(text)) for text in texts])
    text = BatchEncoding({"input_ids": ids, "attention_mask": (ids > 0).long()})
    return Sample(text, Target(ids.sum(1), [len(text) for text in texts]))

def make_loader(workers):
    texts = [[n] * (n % 5 + 1) for n in range(1, 20)]
    return DataLoader(texts, 4, collate_fn=collate, num_workers=workers)

def train(rank, name, workers):
    arguments = {"workers": workers}
    with SharedLoader(make_loader, name=name, arguments=arguments, batch_size=None) as loader:
        for got, want in zip(loader, make_loader(0), strict=True):
            assert isinstance(got, Sample) and isinstance(got.target, Target)
            assert isinstance(got.text, BatchEncoding)
            assert torch.equal(got.text.input_ids, want.text["input_ids"])
            assert torch.equal(got.target.label, want.target.label)
            assert got.target.length == want.target.length
    print(f"rank {rank} has trained", flush=True)

if __name__ == "__main__":
    name, workers, start = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    if start == "spawn":
        torch.multiprocessing.spawn(train, (name, workers), nprocs=2)
    else:
        train(0, name, workers)
"""


@pytest.mark.quick_variants(1)
@pytest.mark.parametrize(
    ("started_as", "how", "workers"),
    [("file", "here", 2), ("file", "spawn", 0), ("module", "spawn", 2)],
)
def test_a_scripts_factory_and_classes_are_found_however_it_is_started(
    tmp_path: Path, started_as: str, how: str, workers: int
) -> None:
    (tmp_path / "fine_tune.py").write_text(SCRIPT)
    what = ["fine_tune.py"] if started_as == "file" else ["-m", "fine_tune"]
    done = subprocess.run(
        [sys.executable, *what, name_of_its_own(), str(workers), how],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        f"rank {rank} has trained" for rank in range(2 if how == "spawn" else 1)
    ]


ROW = """
import json, os, sys
from pathlib import Path
from radt.loaders import SharedLoader
from tests.support.shared_loading import make_planned

os.sched_setaffinity(0, {int(sys.argv[2])})
arguments = {"samples": 4, "batch_size": 2}
with SharedLoader(make_planned, name=sys.argv[1], arguments=arguments) as loader:
    next(iter(loader))
    server = loader._session.server_pid
    variables = Path(f"/proc/{server}/environ").read_text().split(chr(0))
    print(json.dumps([sorted(os.sched_getaffinity(server)), variables]))
"""


@pytest.mark.quick_variants(1)
@pytest.mark.parametrize("is_row", [True, False])
def test_a_server_has_no_cpus_and_no_share_of_a_gpu_from_the_row_that_started_it(
    is_row: bool,
) -> None:
    cpus = sorted(os.sched_getaffinity(0))
    own = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "30", "CUDA_MPS_PIPE_DIRECTORY": "/mps"}
    environment = {name: value for name, value in os.environ.items() if name != "RADT_RUN_ID"}
    environment |= own | ({"RADT_RUN_ID": "row"} if is_row else {})
    done = subprocess.run(
        [sys.executable, "-c", ROW, name_of_its_own(), str(cpus[-1])],
        cwd=Path(__file__).parents[2],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        start_new_session=True,
    )
    found, variables = json.loads(done.stdout)
    assert found == (cpus if is_row else cpus[-1:])  # what a user chose for a script stays
    assert "CUDA_MPS_PIPE_DIRECTORY=/mps" in variables
    assert not [each for each in variables if each.startswith("CUDA_MPS_ACTIVE")]
