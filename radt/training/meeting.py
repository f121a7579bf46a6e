"""Which replicas take part in a round: torchft's lighthouse, asked by its clients.

Its `Manager` is not used: after a lost lighthouse it raises the same error at each later round, its
server waits out the whole quorum's timeout, and it listens on all interfaces for nothing we need.
"""

from __future__ import annotations

import math
import os
import threading
import time
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any
from uuid import uuid4

os.environ.setdefault("RUST_LOG", "warn")  # torchft reads it when imported, and is chatty

from torchft.coordination import LighthouseClient

from radt.errors import TrainingError, described
from radt.run.notices import say
from radt.training.lighthouse_search import FoundLighthouse

_BEAT_S = 0.25
_BEAT_TIMEOUT = timedelta(seconds=2)
_CONNECT_TIMEOUT = timedelta(seconds=5)
#: Others are waited for as long as they live: theirs may be long steps.
_ROUND_TIMEOUT = timedelta(hours=12)
_RETRY_S = 0.2
#: A lighthouse that was started again has to hear all who live before it closes a round.
_HEARD_S = 6 * _BEAT_S
#: A lighthouse that answers heartbeats and fails so many rounds in a row fails all of them.
_MOST_REFUSALS = 3


@dataclass(frozen=True, slots=True)
class Presence:
    """What a replica tells the others before a round.

    Attributes:
        replica: Its id.
        state_address: Where it gives its state.
        store_address: Where its store is.
        step: Rounds that it has behind it.
        samples: Samples done since the last one.
        mesh: Its connections; see `Exchange`.
        mesh_size: How many replicas they connect.
        settings: What has to be the same in all replicas.
    """

    replica: str
    state_address: str
    store_address: str
    step: int
    samples: int
    mesh: str
    mesh_size: int
    settings: str


@dataclass(frozen=True, slots=True)
class Round:
    """A round: its name, and who takes part, in the same order for all."""

    name: str
    present: tuple[Presence, ...]

    @property
    def active(self) -> tuple[Presence, ...]:
        """Those whose parameters are averaged; the others get the result from the first of them.

        In a group's very first round this is one replica: all begin with its parameters.
        """
        alike = [one for one in self.present if one.settings == self.leading.settings]
        latest = self.leading.step
        return tuple(one for one in alike if one.step == latest) if latest else (self.leading,)

    @property
    def leading(self) -> Presence:
        """The first replica that has all rounds behind it."""
        return max(self.present, key=lambda one: one.step)  # the first of equals

    @property
    def samples(self) -> int:
        """Samples of all active replicas since the last round."""
        return sum(one.samples for one in self.active)


class Attendance:
    """A replica's place at the lighthouse: a thread sends heartbeats until `close`.

    Args:
        lighthouse: It answers; looked for again when it does so no more.
        group: Begins the replica's id.

    Raises:
        TrainingError: What answers there is no lighthouse.
    """

    def __init__(self, lighthouse: FoundLighthouse, group: str) -> None:
        self.replica = f"{group}:{uuid4().hex}"
        self._lighthouse = lighthouse
        self._client: Any = None
        self._connect()
        self._lost: TrainingError | None = None
        self._ask_after_s = 0.0
        self._away = False
        self._missed = 0  # heartbeats
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="radt-heartbeat", daemon=True)
        self._thread.start()

    def next_round(self, presence: Presence) -> Round:
        """Wait until all replicas that live are at a round, and return it.

        Waits for the lighthouse, too, if it is away.

        Raises:
            TrainingError: The lighthouse is there and fails, again and again; or it is gone and
                cannot be started.
        """
        refusals = 0
        while True:
            self._wait_for_lighthouse()
            missed = self._missed
            try:
                return self._ask(presence)
            except (RuntimeError, TimeoutError) as error:
                self._ask_after_s = math.inf  # until a heartbeat is answered
                self._wait_for_lighthouse()
                refusals = refusals + 1 if self._missed == missed else 0
                if refusals == _MOST_REFUSALS:
                    raise TrainingError(
                        f"the lighthouse at {self._address} is there, and failed "
                        f"{refusals} times to begin a round: {described(error)}",
                        "Check that replicas and lighthouse have the same version of torchft",
                    ) from error
                if refusals:
                    say(f"the lighthouse failed to begin a round and is asked again: {error}")

    def _wait_for_lighthouse(self) -> None:
        told = False
        while time.monotonic() < self._ask_after_s:
            if self._lost is not None:
                raise self._lost
            if self._away and not told:
                say(f"the lighthouse at {self._address} does not answer; the round waits")
                told = True
            time.sleep(_RETRY_S)

    def close(self) -> None:
        """Leave: the others go on without this replica once its heartbeats are missed."""
        self._ended.set()
        self._thread.join()
        self._client = None  # its threads end with it

    def _ask(self, presence: Presence) -> Round:
        """Ask in a thread, so that Ctrl-C is heard while the main thread waits."""
        answer: Future[Any] = Future()

        def ask() -> None:
            try:
                quorum = self._client.quorum(
                    replica_id=self.replica,
                    timeout=_ROUND_TIMEOUT,
                    address=presence.state_address,
                    store_address=presence.store_address,
                    step=presence.step,
                    world_size=1,
                    shrink_only=False,
                    data=asdict(presence),
                )
                answer.set_result(quorum)
            except BaseException as error:  # noqa: BLE001 - raised where the answer is awaited
                answer.set_exception(error)

        threading.Thread(target=ask, name="radt-round", daemon=True).start()
        quorum = answer.result()
        created = quorum.created
        present = tuple(Presence(**member.data) for member in quorum.participants)
        return Round(f"{created.seconds}.{created.nanos:09d}", present)

    def _beat(self) -> None:
        while not self._ended.wait(_BEAT_S):
            try:
                self._client.heartbeat(self.replica, timeout=_BEAT_TIMEOUT)
            except (RuntimeError, TimeoutError):
                self._missed += 1
                self._away, self._ask_after_s = True, math.inf
                self._find_again()
                continue
            self._away = False
            if self._ask_after_s == math.inf:
                self._ask_after_s = time.monotonic() + _HEARD_S

    def _find_again(self) -> None:
        try:
            self._lighthouse.look()
        except TrainingError as error:
            self._lost = error
        if self._lighthouse.address != self._address:
            with suppress(TrainingError):  # it is gone again: so is the next heartbeat
                self._connect()

    def _connect(self) -> None:
        address = self._lighthouse.address
        try:
            self._client = LighthouseClient(address, connect_timeout=_CONNECT_TIMEOUT)
        except (RuntimeError, TimeoutError) as error:
            raise TrainingError(
                f"the lighthouse at {address} cannot be used: {described(error)}",
                "Expected torchft's lighthouse there: python -m radt.training.lighthouse",
            ) from error
        self._address = address
