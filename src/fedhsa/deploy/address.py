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
