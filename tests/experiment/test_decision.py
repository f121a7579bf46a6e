"""What the next start does with a row."""

from __future__ import annotations

import pytest

from radt.experiment.decision import Action, decide
from radt.model import RunStatus


@pytest.mark.parametrize(
    ("status", "rerun", "action"),
    [
        (None, False, Action.RUN),
        (None, True, Action.RUN),
        (RunStatus.SCHEDULED, False, Action.RUN),
        (RunStatus.FINISHED, False, Action.SKIP),
        (RunStatus.FINISHED, True, Action.SKIP),
        (RunStatus.FAILED, False, Action.SKIP),
        (RunStatus.FAILED, True, Action.RUN),
        (RunStatus.RUNNING, False, Action.RESUME),
        (RunStatus.RUNNING, True, Action.RESUME),
        (RunStatus.KILLED, False, Action.RESUME),
        (RunStatus.KILLED, True, Action.RESUME),
    ],
)
def test_decide(status: RunStatus | None, rerun: bool, action: Action) -> None:
    assert decide(status, rerun=rerun) is action
    assert action.runs == (action is not Action.SKIP)


def test_every_status_is_decided() -> None:
    assert all(decide(status, rerun=rerun) for status in RunStatus for rerun in (False, True))
