"""Run the collector in the foreground: ``python -m radt.collector``. Clients add ``--detach``.

With ``--detach``, the command returns at once and the collector continues in a child process. Its
starter then neither waits for it nor becomes its parent (a run's process tree must not contain it).
"""

import os
import sys

detach = "--detach" in sys.argv[1:]
if detach and os.fork():
    os._exit(0)

from radt.collector.guardian import main  # noqa: E402 - after the parent's exit: nobody waits for it

sys.exit(main(detach=detach))
