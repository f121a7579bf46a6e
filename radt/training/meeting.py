"""Find the replicas that take part in a round, by asking torchft's lighthouse.

torchft's `Manager` is not used: after a lost lighthouse it raises the same error in each later
round, its server waits out the whole quorum's timeout, and it listens on all interfaces without
need.
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

os.environ.setdefault("RUST_LOG", "warn")  # torchft reads it on import, and its default is verbose

from torchft.coordination import LighthouseClient

from radt.errors import TrainingError, described
from radt.run.notices import say
from radt.training.lighthouse import address_of

_BEAT_S = 0.25
_BEAT_TIMEOUT = timedelta(seconds=2)
_CONNECT_TIMEOUT = timedelta(seconds=5)
#: Other replicas are waited for while they live: they may be in long steps.
_ROUND_TIMEOUT = timedelta(hours=12)
_RETRY_S = 0.2
#: A restarted lighthouse must hear from all live replicas before it closes a round.
_HEARD_S = 6 * _BEAT_S
#: A lighthouse that answers heartbeats but fails this many rounds in a row will fail all of them.
_MOST_REFUSALS = 3


@dataclass(frozen=True, slots=True)
class Presence:
    """A replica's message to the others before a round.

    Attributes:
        replica: Its id.
        state_address: Address of its state server.
        store_address: Address of its store.
        step: Number of completed rounds.
        samples: Samples done since the last one.
        mesh: Its connections; see `Exchange`.
        mesh_size: Number of replicas that they connect.
        settings: Settings that must be the same in all replicas.
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
class MeetingRound:
    """A round: its name, and its replicas in an order that is the same for all."""

    name: str
    present: tuple[Presence, ...]

    @property
    def active(self) -> tuple[Presence, ...]:
        """Replicas whose parameters are averaged. The others get the result from the first of them.

        In a group's very first round, this is one replica: all start from its parameters.
        """
        alike = [one for one in self.present if one.settings == self.leading.settings]
        latest = self.leading.step
        return tuple(one for one in alike if one.step == latest) if latest else (self.leading,)

    @property
    def leading(self) -> Presence:
        """The first replica that has completed all rounds."""
        return max(self.present, key=lambda one: one.step)  # the first of equals

    @property
    def samples(self) -> int:
        """Samples of all active replicas since the last round."""
        return sum(one.samples for one in self.active)


class Attendance:
    """A replica's membership at the lighthouse. A thread sends heartbeats until `close`.

    Args:
        lighthouse: Address of a lighthouse that answers.
        group: The group.
        given: The address that the script gave. Without one, a lighthouse that was restarted
            elsewhere is followed.

    Raises:
        TrainingError: Something else listens there.
    """

    def __init__(self, lighthouse: str, group: str, given: str | None = None) -> None:
        self.replica = f"{group}:{uuid4().hex}"
        self._group, self._given, self._address = group, given, lighthouse
        self._client: Any = _client(lighthouse)
        self._ask_after_s = 0.0
        self._away = False
        self._missed = 0  # heartbeats
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="radt-heartbeat", daemon=True)
        self._thread.start()

    def next_round(self, presence: Presence) -> MeetingRound:
        """Wait until all live replicas are at a round, and return it.

        Also waits for the lighthouse while it is away.

        Raises:
            TrainingError: The lighthouse answers, but fails repeatedly.
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
            if self._away and not told:
                say(f"the lighthouse at {self._address} does not answer; the round waits")
                told = True
            time.sleep(_RETRY_S)

    def close(self) -> None:
        """Leave. The others continue without this replica once its heartbeats are missed."""
        self._ended.set()
        self._thread.join()
        self._client = None  # this also ends its threads

    def _ask(self, presence: Presence) -> MeetingRound:
        """Ask in a thread, so that Ctrl-C works while the main thread waits."""
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
            except BaseException as error:  # noqa: BLE001 - re-raised by `answer.result`
                answer.set_exception(error)

        threading.Thread(target=ask, name="radt-round", daemon=True).start()
        quorum = answer.result()
        created = quorum.created
        present = tuple(Presence(**member.data) for member in quorum.participants)
        return MeetingRound(f"{created.seconds}.{created.nanos:09d}", present)

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
        address = address_of(self._group, self._given)
        if address not in ("", self._address):
            with suppress(TrainingError):  # gone again: the next heartbeat retries
                self._client = _client(address)
                self._address = address


def _client(address: str) -> Any:
    try:
        return LighthouseClient(address, connect_timeout=_CONNECT_TIMEOUT)
    except (RuntimeError, TimeoutError) as error:
        raise TrainingError(
            f"the lighthouse at {address} cannot be used: {described(error)}",
            "Expected torchft's lighthouse there: python -m radt.training.lighthouse",
        ) from error
