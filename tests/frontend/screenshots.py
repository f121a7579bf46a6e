"""Pictures of every page, to be looked at: ``python -m tests.frontend.screenshots [FOLDER] [OUT]``.

FOLDER is a data folder with runs in it (``make demo`` makes one), OUT is where the pictures go.
They are compared with nothing: what is beautiful and clear is for people to say.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from playwright.sync_api import Browser, sync_playwright
from waitress.server import create_server

from radt.frontend.app import PAGES, create_app
from radt.frontend.auth import DashboardAccess
from radt.frontend.data.cached_store import CachedStore
from radt.frontend.serve import listen

WIDTHS = (900, 1440, 1920, 3840)
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
#: What is worth seeing besides each page as it opens.
STATES: Mapping[str, str] = {
    "compare-workloads": "/compare?level=workload",
    "compare-smooth": "/compare?smooth=5",
}


@contextmanager
def served(store: Path) -> Iterator[str]:
    """The dashboard over a store, from a thread."""
    source = CachedStore(store)
    listener = listen("127.0.0.1", 0)
    server = create_server(
        create_app(source, DashboardAccess()).server, sockets=[listener], threads=4
    )
    threading.Thread(target=server.run, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.close()
        source.close()


def take(browser: Browser, address: str, out: Path) -> Iterator[Path]:
    """Each page and state, at each width, light and dark."""
    paths = {page.title.lower(): f"/{page.path}" for page in PAGES} | dict(STATES)
    for scheme in SCHEMES:
        for width in WIDTHS:
            context = browser.new_context(
                viewport={"width": width, "height": 900},
                color_scheme=scheme,
                device_scale_factor=1,
            )
            page = context.new_page()
            for name, path in paths.items():
                page.goto(address + path)
                page.locator("main#content > *").first.wait_for()
                page.wait_for_load_state("networkidle")
                page.wait_for_timeout(600)  # charts paint after their data came
                file = out / f"{name}-{width}-{scheme}.png"
                page.screenshot(path=file)
                yield file
            context.close()


def main() -> None:
    """Take them all."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "radt-data")
    out = Path(sys.argv[2] if len(sys.argv) > 2 else "build/screenshots")
    if not (folder / "radt.db").exists():
        sys.exit(f"there are no runs in {folder}: `make demo` records some")
    out.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright, served(folder / "radt.db") as address:
        browser = playwright.chromium.launch(
            executable_path="/usr/bin/chromium", args=["--no-sandbox", "--disable-gpu"]
        )
        for file in take(browser, address, out):
            sys.stdout.write(f"{file}\n")
        browser.close()


if __name__ == "__main__":
    main()
