"""The way to the host engine: whether there is one, and through what it is asked."""

from __future__ import annotations

import logging

from radt.errors import ListenerUnavailableError
from radt.listeners import dcgm_bindings, dcgm_command
from radt.listeners.api import Availability
from radt.listeners.dcgm_dmon import DmonEngine
from radt.listeners.dcgm_engine import Engine, HostengineError

log = logging.getLogger(__name__)

_PROBE_S = 2.0
#: Where nv-hostengine listens unless told otherwise.
_ADDRESS = ("127.0.0.1", 5555)
_NO_ENGINE = "Start it (systemctl start nvidia-dcgm, or nv-hostengine)"
_INSTALL = "Install datacenter-gpu-manager and start nv-hostengine"
_OR_GPM = "; on Hopper and later, the listener gpm needs no daemon"


def probe_engine() -> Availability:
    """Whether a host engine answers. Loads nothing of DCGM into this process."""
    import socket

    dcgmi = dcgm_command.find()
    if dcgmi is None and dcgm_bindings.find() is None:
        reason = "neither dcgmi nor DCGM's Python bindings are installed"
        return Availability(False, reason, _INSTALL + _OR_GPM)
    try:
        if dcgmi is None:
            socket.create_connection(_ADDRESS, timeout=_PROBE_S).close()
            return Availability(True)
        code, text = dcgm_command.ask(dcgmi, "discovery", "-l", timeout_s=_PROBE_S)
    except OSError as error:
        cause = f"nothing listens on {_ADDRESS[0]}:{_ADDRESS[1]} ({error})"
        return Availability(False, f"no DCGM host engine: {cause}", _NO_ENGINE + _OR_GPM)
    except HostengineError as error:
        return Availability(False, error.message, (error.remedy or _NO_ENGINE) + _OR_GPM)
    if code != 0:
        return Availability(False, dcgm_command.said(text)[0], _NO_ENGINE + _OR_GPM)
    return Availability(True)


def connect(interval_s: float, *, dmon: bool) -> Engine:
    """Through the bindings, or through dcgmi if they do not work or ``dmon`` says so.

    Raises:
        ListenerUnavailableError: Neither can be used.
    """
    dcgmi, bindings = dcgm_command.find(), dcgm_bindings.find()
    cause = "DCGM's Python bindings are not installed"
    if bindings is not None and not (dmon and dcgmi is not None):
        try:
            return dcgm_bindings.BindingsEngine(bindings, interval_s)
        except (ImportError, OSError, HostengineError) as error:
            cause = f"DCGM's Python bindings in {bindings} do not work: {error}"
            log.info("%s", cause)
    if dcgmi is None:
        raise ListenerUnavailableError(f"{cause}, and there is no dcgmi", _INSTALL)
    return DmonEngine(dcgmi, interval_s)
