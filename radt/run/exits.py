"""Find out how this process ends, for runs whose block is never left.

Python keeps other exceptions in `sys.last_value`, but drops `SystemExit` before exit handlers run.
So `sys.exit` is replaced by a function that keeps the exception it raises.
"""

from __future__ import annotations

import sys
import threading
from functools import wraps
from opcode import opname
from typing import Any, NoReturn

#: The last `SystemExit` that `sys.exit` raised in the main thread.
_last: list[SystemExit] = []


def watch_exit() -> None:
    """Make `sys.exit` keep the exception it raises. Later calls do nothing."""
    original = sys.exit
    if hasattr(original, "watched_by_radt"):
        return

    @wraps(original)
    def watched(*code: Any) -> NoReturn:
        try:
            original(*code)
        except SystemExit as error:
            if threading.current_thread() is threading.main_thread():
                _last[:] = [error]
            raise

    vars(watched)["watched_by_radt"] = True
    sys.exit = watched


def exit_of_process() -> BaseException | None:
    """Return the exception that ended the script; None if it reached its end."""
    uncaught: BaseException | None = getattr(sys, "last_value", None)
    if uncaught is not None or not _last:
        return uncaught
    # The outermost frame of the traceback is the last that handled the exception: either a ``with``
    # that passed it on, or an ``except`` after which the frame went on to its end.
    traceback = _last[0].__traceback__
    if traceback is None:
        return None
    frame = traceback.tb_frame
    last_instruction = opname[frame.f_code.co_code[frame.f_lasti]]
    return None if last_instruction.startswith("RETURN") else _last[0]
