"""One of two peers that average a model on this machine: `ElasticAverager`, or hivemind 1.1.12.

python -m benchmarks.training.averaging_peer radt|hivemind GROUP [ADDRESS]

It writes a line when it can average (hivemind: its address first). For each line that it reads,
which is a number of rounds, it writes the seconds of each as JSON.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Callable

import torch
from torch import nn

#: 10.5 MB of parameters.
WIDTH, LAYERS = 512, 10


def serve(average: Callable[[], object]) -> None:
    """Answer whoever measures."""
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        seconds = []
        for _ in range(int(line)):
            began_s = time.monotonic()
            average()
            seconds.append(time.monotonic() - began_s)
        sys.stdout.write(json.dumps(seconds) + "\n")
        sys.stdout.flush()


def with_radt(net: nn.Module, group: str) -> None:
    """Average by the averager of this library; a lighthouse of the group has to be there."""
    from radt.training import ElasticAverager, Job

    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    job = Job("net", net, optimizer, nn.functional.mse_loss)
    with ElasticAverager(job, global_batch=1, group=group, replicas=2) as averager:
        serve(lambda: averager.did(1))


def with_hivemind(net: nn.Module, group: str, addresses: list[str]) -> None:
    """Average by hivemind's averager, with its defaults."""
    hivemind = importlib.import_module("hivemind")
    dht = hivemind.DHT(initial_peers=addresses, start=True)
    sys.stdout.write(f"{dht.get_visible_maddrs()[0]}\n")
    sys.stdout.flush()
    averager = hivemind.DecentralizedAverager(
        [parameter.detach() for parameter in net.parameters()],
        dht=dht,
        prefix=group,
        target_group_size=2,
        start=True,
    )

    def average() -> None:
        group = averager.step(weight=1.0, timeout=60.0)
        assert group is not None, "no average"
        assert len(group) == 2, "a peer was alone"

    try:
        serve(average)
    finally:
        averager.shutdown()
        dht.shutdown()


if __name__ == "__main__":
    torch.set_num_threads(1)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
    if sys.argv[1] == "radt":
        with_radt(model, sys.argv[2])
    else:
        with_hivemind(model, sys.argv[2], sys.argv[3:])
