"""How a run ends whose block an exception leaves."""

from __future__ import annotations

from radt.errors import cut, described, text_of
from radt.model import RunStatus
from radt.run.limits import LimitReached


def ending_of(error: BaseException | None) -> tuple[RunStatus, str]:
    """Return how a run ended whose block this exception left, and why."""
    match error:
        case None | GeneratorExit() | LimitReached():
            return RunStatus.FINISHED, ""
        case SystemExit(code=None | 0):
            return RunStatus.FINISHED, ""
        case SystemExit(code=code):
            return RunStatus.FAILED, cut(f"exit code {text_of(code) or type(code).__name__}")
        case KeyboardInterrupt():
            return RunStatus.KILLED, "interrupted by the user"
    return RunStatus.FAILED, described(error)
