"""``python -m tests.chaos``: rounds of random faults, by hand and before a release."""

from __future__ import annotations

import argparse
import os
import secrets
import shutil
import tempfile
from pathlib import Path

from tests.chaos.campaign import Campaign, Round, table
from tests.chaos.faults import FAULTS
from tests.support.servers import postgres_cluster


def main() -> int:
    """Print each round as it is over, then all of them; exit with 1 if one is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=main.__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--first", type=int, default=1, help="number of the first round")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(2**31))
    parser.add_argument("--fault", action="append", choices=sorted(FAULTS), default=[])
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="rounds at a time")
    parser.add_argument("--stop", action="store_true", help="stop at the first round that is wrong")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="radt-chaos-"))
    print(f"seed {given.seed}, {given.rounds} rounds, in {folder}", flush=True)
    done: list[Round] = []
    with postgres_cluster() as postgres:
        campaign = Campaign(folder, postgres, given.seed, given.fault)
        for one in campaign.rounds(given.rounds, given.first, given.jobs):
            done.append(one)
            print(table([one]).rsplit("\n", 1)[0], flush=True)
            if not one.wrong:
                shutil.rmtree(folder / f"round{one.number}")
            elif given.stop:
                break
    wrong = any(one.wrong for one in done)
    print(f"\nseed {given.seed}\n{table(done)}")
    for name in campaign.left_out:
        print(f"left out, as no disk can be mounted here: {name}")
    if not wrong:
        shutil.rmtree(folder)
    return int(wrong)


if __name__ == "__main__":
    raise SystemExit(main())
