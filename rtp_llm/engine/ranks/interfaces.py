# SPDX-License-Identifier: Apache-2.0
"""The network interface of an address, which collectives are told to use."""

from __future__ import annotations

import fcntl
import socket
import struct
from collections.abc import Mapping
from pathlib import Path

_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
_SIOCGIFADDR = 0x8915
_NAME_BYTES, _ADDRESS = 16, slice(20, 24)
_IPV6_TABLE = Path("/proc/net/if_inet6")


def interface_variables(environ: Mapping[str, str], address: str) -> dict[str, str]:
    """The variables that make collectives talk over the interface of this machine's ``address``.

    What the user's environment says of them stands, and nothing is said of an address that no
    interface has.
    """
    name = interface_of(address)
    return {each: name for each in _VARIABLES if name and not environ.get(each)}


def interface_of(address: str) -> str:
    """Its name; empty for an address that none has."""
    if ":" in address:
        return _of_ipv6(address)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[: _NAME_BYTES - 1])
            try:
                answer = fcntl.ioctl(probe, _SIOCGIFADDR, request)
            except OSError:
                continue  # it has no such address
            if socket.inet_ntoa(answer[_ADDRESS]) == address:
                return name
    return "lo" if address.startswith("127.") else ""


def _of_ipv6(address: str) -> str:
    wanted = socket.inet_pton(socket.AF_INET6, address.partition("%")[0]).hex()
    rows = _IPV6_TABLE.read_text().splitlines() if _IPV6_TABLE.exists() else []
    return next((row.split()[-1] for row in rows if row.startswith(wanted)), "")
