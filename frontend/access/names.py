"""Names under which a dashboard answers, against "DNS rebinding".

A page on the web can make a browser send requests to any address that the browser's machine
reaches. It can read the answers once its own name is made to point there: page and dashboard are
one origin then. So only names that are known to be the dashboard's are answered. An address in
numbers cannot be made to point elsewhere.
"""

from __future__ import annotations

import ipaddress
import socket
import threading

LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
#: A resolver that does not answer keeps nobody from starting.
_RESOLVER_S = 2.0


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_numeric(name: str) -> bool:
    """Whether this is an IP address."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def host_name(header: str) -> str:
    """The name in a Host header, without port and brackets, in lower case."""
    name = header.strip().lower()
    if name.startswith("["):
        return name[1:].partition("]")[0]
    return (name.partition(":")[0] if name.count(":") == 1 else name).rstrip(".")


def own_names() -> frozenset[str]:
    """What this machine is called, as far as it knows within `_RESOLVER_S`."""
    found = {socket.gethostname().lower()}
    asking = threading.Thread(target=lambda: found.add(socket.getfqdn().lower()), daemon=True)
    asking.start()
    asking.join(_RESOLVER_S)
    return frozenset(found) - {""}
