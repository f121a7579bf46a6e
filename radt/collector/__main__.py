"""``python -m radt.collector`` runs the collector in the foreground; clients add ``--detach``.

That returns at once and goes on in a child, so that whoever starts a collector neither waits for it
nor becomes its parent (a run's process tree must not contain it).
"""

import os
import sys

detach = "--detach" in sys.argv[1:]
if detach and os.fork():
    os._exit(0)

from radt.collector.guardian import main  # noqa: E402 - its time is nobody's to wait for

sys.exit(main(detach=detach))
