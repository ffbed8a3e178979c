"""Whom a connection counts for, where connections are bounded for each peer."""

from __future__ import annotations

import ipaddress


def peer_of(name: object) -> str:
    """The peer of a socket's peer name: its address; a network of 64 bits is one peer, since
    hosts have such a one to themselves under IPv6."""
    host = name[0] if isinstance(name, tuple) and name else ""
    if ":" not in host:
        return str(host)
    address = ipaddress.IPv6Address(host.partition("%")[0])
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((address, 64), strict=False))
