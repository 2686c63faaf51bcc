"""Python imports this at start where its folder is on PYTHONPATH, as in the tests: nothing leaves this machine.

A connection, a datagram or a name look-up that is not for this machine raises ConnectionError before anything is sent,
and is written into the file named by COURSE_NETWORK_LOG, so that code which swallows the error is noticed as well.
"""

import ipaddress
import os
import socket
import sys

EVENTS = {
    "socket.connect": 1, "socket.sendto": 1, "socket.sendmsg": 1,
    "socket.getaddrinfo": 0, "socket.gethostbyname": 0, "socket.gethostbyaddr": 0,
}  # fmt: skip


def is_here(host) -> bool:
    """Whether a host, as any of the socket functions takes it, is this machine."""
    host = host.decode() if isinstance(host, bytes) else host
    if host in (None, "", "localhost", socket.gethostname()):
        return True
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback or host in ("0.0.0.0", "::")
    except ValueError:
        return False


def stay_here(event: str, arguments: tuple):
    """Audit hook, https://docs.python.org/3/library/audit_events.html: refuse what is for another machine."""
    if event not in EVENTS:
        return
    target = arguments[EVENTS[event]]
    if target is None or (
        event in ("socket.connect", "socket.sendto", "socket.sendmsg") and isinstance(target, (str, bytes))
    ):
        return  # an answer on a connection that stands, or a file of this machine (AF_UNIX)
    host = target[0] if isinstance(target, tuple) else target
    if not is_here(host):
        if log := os.environ.get("COURSE_NETWORK_LOG"):
            with open(log, "a", encoding="utf-8") as file:
                file.write(f"{event} {target!r} by {' '.join(sys.orig_argv)[:200]}\n")
        raise ConnectionError(f"{event} {target!r}: the tests run without a network.")


sys.addaudithook(stay_here)
