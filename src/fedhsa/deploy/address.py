"""Checks of hosts and ports."""

import ipaddress


def check_port(name: str, port: int) -> int:
    """Raises if a number cannot be that of a port.

    >>> check_port("port", 70000)
    Traceback (most recent call last):
    ValueError: `port` must be a number from 1 to 65535, got 70000.
    """
    if not 1 <= port <= 65535:
        raise ValueError(f"`{name}` must be a number from 1 to 65535, got {port}.")
    return port


def check_host(name: str, host: str) -> str:
    """Raises if a text looks like an address and is none, like 999.1.1.1."""
    if host and all(part.isdecimal() for part in host.split(".")):
        try:
            ipaddress.ip_address(host)
        except ValueError:
            raise ValueError(
                f"`{name}`: {host} is not an address: that would be four numbers from 0 to 255, like 192.0.2.7."
            ) from None
    return host


def split_address(name: str, text: str, *, free: bool = False) -> tuple[str, int]:
    """Host and port of HOST:PORT; with `free`, port 0 stands for any that is free.

    >>> split_address("listen", "[2001:db8::7]:8000")
    ('2001:db8::7', 8000)
    """
    host, colon, port = text.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not (bare and colon and port.isdecimal()) or "/" in host or (":" in bare and bare == host):
        raise ValueError(f"`{name}` must be HOST:PORT, like 192.0.2.7:8000, got {text!r}.")
    return check_host(name, bare), 0 if free and int(port) == 0 else check_port(name, int(port))
