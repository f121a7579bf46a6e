"""OpenStack Swift with its S3 API, all four of its servers in one process.

::

    python -m tests.support.swift_server FOLDER      # which S3Server has filled

https://docs.openstack.org/swift/latest/middleware.html#aws-s3-api
"""

from __future__ import annotations

import json
import signal
import socket
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.daemon import LOOPBACK

PORTS_FILE = "ports.json"
BACKENDS = ("account", "container", "object")
PROXY = "proxy"
#: Partitions are folders; a single disk needs few: 2 ** 6.
_PART_POWER = 6
_SECTION = "[app:{server}-server]\nuse = egg:swift#{server}\n{more}"
_DEFAULTS = """[DEFAULT]
swift_dir = {folder}
devices = {folder}/disks
mount_check = false
bind_ip = {loopback}
bind_port = {port}
workers = 0
log_level = WARNING
disable_fallocate = true
fallocate_reserve = 0
"""
_PROXY_PIPELINE = """[pipeline:main]
pipeline = catch_errors gatekeeper healthcheck s3api tempauth copy slo symlink proxy-server

[filter:catch_errors]
use = egg:swift#catch_errors
[filter:gatekeeper]
use = egg:swift#gatekeeper
[filter:healthcheck]
use = egg:swift#healthcheck
[filter:s3api]
use = egg:swift#s3api
max_upload_part_num = 10000
[filter:copy]
use = egg:swift#copy
[filter:slo]
use = egg:swift#slo
max_manifest_segments = 10000
[filter:symlink]
use = egg:swift#symlink
[filter:tempauth]
use = egg:swift#tempauth
user_{account}_{user} = {secret} .admin

"""


def configuration(
    folder: Path, ports: Mapping[str, int], account: str, user: str, secret: str
) -> dict[str, str]:
    """The configuration files by name; that of the proxy holds the secret."""
    timeouts = "node_timeout = 60\nconn_timeout = 60\n"
    more = {
        "account": "",
        "container": timeouts,
        "object": timeouts + "container_update_timeout = 60\n",
        PROXY: timeouts
        + "account_autocreate = true\nrecoverable_node_timeout = 60\nrequest_node_count = 1\n",
    }
    files = {}
    for server, lines in more.items():
        head = _DEFAULTS.format(folder=folder, loopback=LOOPBACK, port=ports[server])
        pipeline = f"[pipeline:main]\npipeline = {server}-server\n\n"
        if server == PROXY:
            pipeline = _PROXY_PIPELINE.format(account=account, user=user, secret=secret)
        files[f"{server}.conf"] = head + pipeline + _SECTION.format(server=server, more=lines)
    return files


def main(folder: Path) -> None:
    """Serve until SIGTERM."""
    from swift.common import utils

    utils.SWIFT_CONF_FILE = str(folder / "swift.conf")
    utils.validate_hash_conf()
    utils.monkey_patch()
    ports: dict[str, int] = json.loads((folder / PORTS_FILE).read_text(encoding="utf-8"))
    _build_rings(folder, ports)

    import eventlet
    from swift.common import storage_policy
    from swift.common.wsgi import loadapp

    storage_policy.reload_storage_policies()
    _log_to_stderr()
    sockets = {name: _listening(port) for name, port in ports.items()}
    threads = []
    for server in (*BACKENDS, PROXY):
        app: Any = loadapp(str(folder / f"{server}.conf"), global_conf={"log_name": server})
        threads.append(eventlet.spawn(_serve, sockets[server], app))
    _no_syslog()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    for thread in threads:
        thread.wait()


def _build_rings(folder: Path, ports: Mapping[str, int]) -> None:
    """One disk, one replica; the same partitions lie there whatever the ports are."""
    from swift.common.ring import RingBuilder

    for server in BACKENDS:
        builder = RingBuilder(_PART_POWER, 1, 1)
        place = {"ip": LOOPBACK, "port": ports[server], "device": "disk"}
        builder.add_dev({"region": 1, "zone": 1, "weight": 1.0, **place})
        builder.rebalance(seed=1)
        builder.get_ring().save(str(folder / f"{server}.ring.gz"))


def _listening(port: int) -> Any:
    import eventlet

    return eventlet.listen((LOOPBACK, port), family=socket.AF_INET, backlog=512)


def _serve(listener: Any, app: Any) -> None:
    """As ``swift.common.wsgi.run_server`` does, for one of several in a process."""
    from eventlet import wsgi
    from swift.common.constraints import MAX_REQUEST_LINE
    from swift.common.utils import NullLogger
    from swift.common.wsgi import SwiftHttpProtocol

    warnings.filterwarnings("ignore", message="capitalize_response_headers is disabled")
    wsgi.server(
        listener,
        app,
        NullLogger(),
        protocol=SwiftHttpProtocol,
        socket_timeout=60,
        capitalize_response_headers=False,  # S3's clients look for "ETag"
        url_length_limit=MAX_REQUEST_LINE,
    )


def _log_to_stderr() -> None:
    """All loggers made from now on write there, too."""
    from swift.common.utils.logs import get_swift_logger

    get_swift_logger.console_handler4logger = {}


def _no_syslog() -> None:
    from swift.common.utils.logs import get_swift_logger

    for logger, handler in get_swift_logger.handler4logger.items():
        logger.removeHandler(handler)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
