"""Draws figures in a headless browser, for the dashboard that started it.

It is a helper (`radt.frontend.helper`), so that a hanging browser can be killed with all of its
children, and its memory is freed when no pictures are requested. Kaleido's own server of one
browser (``kaleido.start_sync_server``) waits for ever if Chrome cannot be started, so its class is
used directly.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, BinaryIO, Self

#: Seconds for one picture; the dashboard waits a little longer.
RENDER_S = 45.0
#: Seconds for the browser to start. Kaleido may wait for ever for a browser that ended at once.
START_S = 30.0


class Failure(StrEnum):
    """Reason for a failed picture."""

    NO_BROWSER = "no browser"
    BROWSER = "browser"
    FIGURE = "figure"


@dataclass(frozen=True, slots=True)
class Order:
    """A picture to draw: size in CSS pixels, ``scale`` for raster formats."""

    figure: dict[str, Any]
    format: str
    width_px: int
    height_px: int
    scale: float

    def to_line(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> Self:
        return cls(**json.loads(line))


@dataclass(frozen=True, slots=True)
class Answer:
    """Result of an order; ``length`` bytes of picture follow it, ``is_last``: nothing else does."""

    length: int = 0
    failure: str = ""
    detail: str = ""
    is_last: bool = False

    def to_line(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> Self:
        return cls(**json.loads(line))


async def work(orders: BinaryIO, answers: BinaryIO) -> None:
    """Answer orders until there are no more."""
    from choreographer.errors import BrowserClosedError, BrowserFailedError, ChromeNotFoundError
    from kaleido import Kaleido

    def say(answer: Answer, picture: bytes = b"") -> None:
        answers.write(answer.to_line() + picture)
        answers.flush()

    line = await asyncio.to_thread(orders.readline)
    try:
        async with AsyncExitStack() as stack:
            # Nothing is downloaded: no MathJax, and Plotly's script is that of the Python package.
            kaleido = Kaleido(n=1, timeout=RENDER_S, mathjax=False)
            try:
                async with asyncio.timeout(START_S):
                    browser = await stack.enter_async_context(kaleido)
            except TimeoutError:
                detail = f"it did not start within {START_S:g} s"
                say(Answer(failure=Failure.BROWSER, detail=detail, is_last=True))
                return
            while line:
                try:
                    picture = await _draw(browser, Order.from_line(line))
                except (BrowserClosedError, BrowserFailedError):
                    raise
                except Exception as error:  # noqa: BLE001 - Plotly's and Kaleido's, of one figure
                    say(Answer(failure=Failure.FIGURE, detail=f"{type(error).__name__}: {error}"))
                else:
                    say(Answer(length=len(picture)), picture)
                line = await asyncio.to_thread(orders.readline)
    except ChromeNotFoundError as error:
        say(Answer(failure=Failure.NO_BROWSER, detail=str(error), is_last=True))
    except (BrowserClosedError, BrowserFailedError) as error:
        say(Answer(failure=Failure.BROWSER, detail=str(error), is_last=True))


async def _draw(browser: Any, order: Order) -> bytes:
    options = {
        "format": order.format,
        "width": order.width_px,
        "height": order.height_px,
        "scale": order.scale,
    }
    picture: bytes = await browser.calc_fig(order.figure, opts=options)
    return picture


def main() -> None:
    """Serve the process that started this one."""
    answers = os.fdopen(os.dup(1), "wb")
    # Output printed by libraries must not mix with the answers.
    os.dup2(2, 1)
    try:
        asyncio.run(work(sys.stdin.buffer, answers))
    finally:
        if folder := os.environ.get("TMPDIR"):  # created for this process alone
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
