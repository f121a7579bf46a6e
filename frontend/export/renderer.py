"""Pictures of figures, drawn by Kaleido in a browser on the server's machine.

One browser, one picture at a time: it takes a core, and some 300 MB that the dashboard itself must
not need. It is started with the first picture and ended when it has been idle for a while.
"""

from __future__ import annotations

import importlib.util

from radt.errors import RadtError
from radt.frontend.export.render_worker import RENDER_S, Answer, Failure, Order
from radt.frontend.helper import EndedError, HelperKind, Helpers

_MODULE = "radt.frontend.export.render_worker"
#: The limit on pictures that wait for the one being drawn.
MAX_WAITING = 3
#: Seconds until an idle browser is ended.
IDLE_S = 60.0
#: Seconds until an unanswered order is abandoned and its browser ended.
_GIVE_UP_S = RENDER_S + 15.0
_DETAIL_CHARS = 300


class PictureError(RadtError):
    """A picture failed; ``is_lasting`` if the next would fail too because something is missing."""

    def __init__(self, message: str, remedy: str, *, is_lasting: bool = False) -> None:
        super().__init__(message, remedy)
        self.is_lasting = is_lasting


def is_installed() -> bool:
    """Return whether Kaleido is installed."""
    return importlib.util.find_spec("kaleido") is not None


class Renderer:
    """Draws figures, one at a time. Thread-safe."""

    def __init__(self, idle_s: float = IDLE_S, give_up_s: float = _GIVE_UP_S) -> None:
        kind = HelperKind(_MODULE, give_up_s, idle_s, has_folder=True)
        waiting = f"{1 + MAX_WAITING} pictures are already being drawn"
        self.helpers = Helpers(kind, 1, MAX_WAITING, waiting)

    def draw(self, order: Order) -> bytes:
        """Draw a figure as PNG, SVG or PDF.

        Raises:
            BusyError: Too many are waiting already.
            PictureError: Kaleido or a browser is missing, or fails.
        """
        if not is_installed():
            raise PictureError(
                "drawing pictures needs Kaleido, which is not installed",
                'Run `pip install "radt[export]"` where radt runs; '
                "a chart's own menu still makes PNG and SVG in the browser",
                is_lasting=True,
            )
        try:
            line, picture = self.helpers.ask(order.to_line())
        except EndedError as error:
            raise _took_too_long() if error.took_too_long else _ended(error) from error
        answer = Answer.from_line(line)
        if answer.failure:
            raise _failed(answer)
        return picture

    def close(self) -> None:
        """End the browser."""
        self.helpers.close()


def _failed(answer: Answer) -> PictureError:
    detail = " ".join(answer.detail.split())[:_DETAIL_CHARS]
    if answer.failure == Failure.NO_BROWSER:
        return PictureError(
            "drawing pictures needs Chrome or Chromium, which was not found",
            "Install one there (`apt install chromium`, or `kaleido_get_chrome`), or name it in "
            "BROWSER_PATH; a chart's own menu still makes PNG and SVG in the browser",
            is_lasting=True,
        )
    if answer.failure == Failure.BROWSER:
        return PictureError(
            f"the browser that draws pictures cannot be used ({detail})",
            "Check that Chrome starts, or set BROWSER_PATH",
            is_lasting=True,
        )
    return PictureError(
        f"the picture cannot be drawn ({detail})",
        "Try fewer charts; a chart's own menu makes PNG and SVG in the browser",
    )


def _took_too_long() -> PictureError:
    return PictureError(
        "drawing the picture took too long and was stopped", "Try fewer charts or fewer runs"
    )


def _ended(error: EndedError) -> PictureError:
    detail = " ".join(error.last_words.split())
    return PictureError(
        f"the process that draws pictures ended with code {error.code} ({detail})",
        "Try again; a chart's own menu makes PNG and SVG in the browser",
    )
