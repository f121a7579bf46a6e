"""How a replica finds its lighthouse: an address that it was given, or this machine's place."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import threading
import time
from urllib.parse import urlsplit

from radt.errors import TrainingError, UsageError
from radt.home import RUN_DIR_VARIABLE, RUN_ID_VARIABLE
from radt.training.lighthouse_place import Place, own_secret

#: torchft's name for the lighthouse's address.
ADDRESS_VARIABLE = "TORCHFT_LIGHTHOUSE"
_START_S = 60.0
#: A lighthouse that nobody uses ends within this time.
_END_S = 5.0
_POLL_S = 0.2
_ADDRESS = re.compile(r"http://(\[[0-9A-Fa-f:.]+\]|[^\s/:]+):\d{1,5}/?")


class FoundLighthouse:
    """A group's lighthouse, which answers; the first replica on a machine starts it.

    Args:
        group: The group.
        given: Its address; if None, that of ``TORCHFT_LIGHTHOUSE``, or of the lighthouse of this
            group on this machine.

    Attributes:
        address: ``http://HOST:PORT``; `look` may change it.
        is_local: No address was given: only this machine's replicas come to it.
        secret: What its replicas have in common; "" if they may be on several machines.

    Raises:
        UsageError: The given address is none.
        TrainingError: None answers within a minute, or it cannot be started.
    """

    def __init__(self, group: str, given: str | None) -> None:
        fixed = given or os.environ.get(ADDRESS_VARIABLE)
        if fixed is not None and not _ADDRESS.fullmatch(fixed):
            raise UsageError(
                f"the address of the lighthouse is {fixed!r}, expected http://HOST:PORT"
            )
        self._group, self.address = group, fixed or ""
        self.is_local = fixed is None
        self.secret = own_secret() if self.is_local else ""
        self._process: subprocess.Popen[bytes] | None = None
        self._reaping: threading.Thread | None = None
        self._place = Place(group) if self.is_local else None
        try:
            if self._place is not None:
                self._place.use()
            self._wait_for_answer()
        except BaseException:
            self.close()
            raise

    def look(self) -> None:
        """Find it again on this machine, and start it if it is gone.

        Raises:
            TrainingError: It cannot be started.
        """
        if not self.is_local:
            return
        place = Place(self._group)
        try:
            if not place.is_wanted() and place.serve():
                self._start(place)
            elif (known := place.known()) is not None:
                self.address = known.address
        finally:
            place.close()

    def close(self) -> None:
        """Use it no more; wait for its end if this replica started it and nobody else uses it."""
        if self._place is None:
            return
        is_unused = self._place.is_unused()
        self._place.close()
        self._place = None
        if self._reaping is not None and is_unused:
            self._reaping.join(_END_S)

    def _wait_for_answer(self) -> None:
        deadline_s = time.monotonic() + _START_S
        while time.monotonic() < deadline_s:
            self.look()
            if self.address and _answers(self.address):
                return
            time.sleep(_POLL_S)
        where = f"at {self.address}" if self.address else "on this machine"
        raise TrainingError(
            f"no lighthouse of group {self._group!r} answers {where} within {_START_S:.0f} s",
            f"Start it there: python -m radt.training.lighthouse --group {self._group} --host HOST "
            "--port PORT. Replicas on one machine start it themselves where no address is given",
        )

    def _start(self, place: Place) -> None:
        """Start a lighthouse that has this place's locks, and ends when nobody uses it.

        It outlives the run, which radt ends with all processes that have its variables.
        """
        if self._process is not None and (code := self._process.returncode or 0) > 0:
            raise TrainingError(
                f"the lighthouse of group {self._group!r} ended with exit code {code}",
                "Its message is above",
            )
        known = place.known()
        place.tell(None)  # it is not there yet
        command = [sys.executable, "-P", "-m", "radt.training.lighthouse", "--group", self._group]
        command += ["--place", str(place.descriptor)]
        if known is not None:  # where the other replicas still ask
            command += ["--host", known.host.strip("[]"), "--port", str(known.port)]
        environment = dict(os.environ)
        for variable in (RUN_ID_VARIABLE, RUN_DIR_VARIABLE):
            environment.pop(variable, None)
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                env=environment,
                pass_fds=[place.descriptor],
                start_new_session=True,  # the terminal's Ctrl-C is for replicas
            )
        except OSError as error:
            raise TrainingError(
                f"the lighthouse of group {self._group!r} cannot be started: {error}",
                f"Start it yourself: python -m radt.training.lighthouse --group {self._group}",
            ) from error
        # Somebody has to take note of its end.
        self._reaping = threading.Thread(
            target=self._process.wait, name="radt-lighthouse", daemon=True
        )
        self._reaping.start()


def own_address(lighthouse: str) -> str:
    """Return this machine's address as the lighthouse's network sees it."""
    parts = urlsplit(lighthouse)
    with socket.create_connection((parts.hostname or "", parts.port or 0)) as connection:
        address: str = connection.getsockname()[0]
    return address


def _answers(address: str) -> bool:
    """Return whether something listens at the address."""
    parts = urlsplit(address)
    try:
        with socket.create_connection((parts.hostname or "", parts.port or 0), _POLL_S * 10):
            return True
    except OSError:
        return False
