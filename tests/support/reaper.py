"""Ends the servers of a folder when whoever started this program ends, however that comes about."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.support.servers import end_servers

sys.stdin.buffer.read()
end_servers(Path(sys.argv[1]))
