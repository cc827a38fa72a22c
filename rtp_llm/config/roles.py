# SPDX-License-Identifier: Apache-2.0
"""Consistency checks of prefill/decode disaggregation settings, made before start-up."""

from __future__ import annotations

import importlib.util
import ipaddress
from pathlib import Path
from typing import TYPE_CHECKING

from rtp_llm.config.options import SettingsError
from rtp_llm.config.settings import options
from rtp_llm.config.worker_key import read_worker_key

if TYPE_CHECKING:
    from rtp_llm.config.settings import Settings

# For each transport that is a package: how to install it, and the names its module may have.
_PACKAGES = {"nixl": "nixl-cu13", "mooncake": "mooncake-transfer-engine-non-cuda"}
_MODULES = {"nixl": ("nixl", "nixl_cu13", "nixl_cu12"), "mooncake": ("mooncake",)}

_PREFILL, _DECODE = ("prefill",), ("decode",)
# The roles that read each disaggregation setting other than the role. None: the router only.
READERS: dict[str, tuple[str, ...]] = {
    "prefill_address": _PREFILL,
    "kv_transfer_address": _PREFILL,
    "worker_key_file": _PREFILL + _DECODE,
    "prefill_workers": _DECODE,
    "prefill_timeout": _PREFILL + _DECODE,
    "kv_load_timeout": _PREFILL + _DECODE,
    "prefill_fallback": _DECODE,
    "kv_transport": _PREFILL + _DECODE,
    "cache_store_mem_mb": _PREFILL + _DECODE,
    "cache_store_threads": _PREFILL,
    "cache_store_queue_size": _PREFILL,
    "cache_store_when_full": _PREFILL,
    "workers": (),
    "answer_timeout": (),
    "worker_ca_certs": (),
}
# All settings that `rtp-llm route` reads.
OF_ROUTER = (
    "workers",
    "answer_timeout",
    "worker_ca_certs",
    "host",
    "port",
    "uds",
    "ssl_certfile",
    "ssl_keyfile",
    "ssl_ca_certs",
    "ssl_cert_reqs",
    "enable_ssl_refresh",
    "max_request_bytes",
    "max_open_requests",
    "max_open_bytes",
    "max_connections",
    "max_connections_per_client",
    "max_header_bytes",
    "max_headers",
    "header_timeout",
    "body_timeout",
    "min_body_rate",
    "keep_alive_timeout",
    "stream_stall_timeout",
    "cors_origins",
    "allowed_hosts",
    "api_key",
    "shutdown_timeout",
    "log_level",
    "log_format",
)


def is_installed(transport: str) -> bool:
    """Whether a transport's package is installed; does not import it."""
    return any(map(importlib.util.find_spec, _MODULES[transport]))


def find_module(transport: str) -> str:
    """The module name of an installed transport; if not installed, its first possible name."""
    names = _MODULES[transport]
    return next(filter(importlib.util.find_spec, names), names[0])


def check_role(settings: Settings) -> None:
    """Raise SettingsError naming a setting that is inconsistent with the role."""
    _check_read(settings)
    package = _PACKAGES.get(settings.kv_transport)
    if package and not is_installed(settings.kv_transport):
        raise SettingsError(
            f"kv_transport: {settings.kv_transport} is not installed here; pip install {package}, "
            "or leave --kv-transport out"
        )
    if settings.prefill_replicas and not settings.cluster:
        raise SettingsError(
            "prefill_replicas: --cluster places them; without it start workers with --role prefill"
        )
    if settings.role != "both" and settings.data_parallel_size > 1:
        raise SettingsError(
            f"role: a {settings.role} worker of several ranks is not there yet; set "
            "data_parallel_size to 1 and start several workers"
        )
    if settings.role == "decode" and not prefill_addresses(settings) and not _in_file(settings):
        raise SettingsError(
            "prefill_workers: a decode worker needs at least one: --prefill-workers HOST:PORT,..."
        )
    split_address("prefill_address", settings.prefill_address)
    if settings.kv_transfer_address is not None:
        split_address("kv_transfer_address", settings.kv_transfer_address)
    if settings.worker_key_file is not None:
        read_worker_key(settings.worker_key_file)


def check_one_engine(settings: Settings) -> None:
    """Like check_role, for an engine used without a server."""
    if settings.role != "both":
        raise SettingsError(
            f"role: an LLM does everything itself; `rtp-llm serve --role {settings.role}`"
        )
    if settings.node_rank > 0:
        raise SettingsError(
            "node_rank: an LLM is node 0; on the others run `rtp-llm serve MODEL --node-rank "
            f"{settings.node_rank}`"
        )
    check_role(settings)


def check_router(settings: Settings) -> None:
    """Raise SettingsError naming a setting that a router does not read, or one that it needs."""
    for name in options():
        if name not in OF_ROUTER and _is_set(settings, name):
            raise SettingsError(
                f"{name}: `rtp-llm route` does not read it, only `rtp-llm serve`; leave it out"
            )
    if not settings.workers.strip(", "):
        raise SettingsError("workers: a router needs servers: --workers http://HOST:PORT,...")


def _is_set(settings: Settings, name: str) -> bool:
    return bool(getattr(settings, name) != getattr(type(settings), name))


def _check_read(settings: Settings) -> None:
    """Raise SettingsError for settings that were given but are not read."""
    for name, roles in READERS.items():
        if settings.role in roles or not _is_set(settings, name):
            continue
        if name == "worker_key_file" and settings.nnodes > 1:
            continue
        if not roles:
            raise SettingsError(
                f"{name}: a server does not read it, only `rtp-llm route`; leave it out"
            )
        raise SettingsError(
            f"{name}: not read with --role {settings.role}; leave it out, or set role to "
            f"{' or '.join(roles)}"
        )


def prefill_addresses(settings: Settings) -> list[str]:
    """HOST:PORT of each prefill worker, from the setting or the current contents of its file.

    Raises SettingsError for an invalid address or an unreadable file.
    """
    words = settings.prefill_workers.split(",")
    if file := _in_file(settings):
        try:
            words = Path(file).read_text().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"prefill_workers: {file} cannot be read: {error}") from error
    addresses = [word.strip() for word in words if word.strip()]
    for number, address in enumerate(addresses):
        if split_address("prefill_workers", address)[1] == 0:
            raise SettingsError(f"prefill_workers: {address!r} has port 0, where nobody listens")
        if address in addresses[:number]:
            raise SettingsError(f"prefill_workers: {address!r} is listed twice")
    return addresses


def _in_file(settings: Settings) -> str:
    """The file with the addresses, which may still be empty; "": the setting lists them itself."""
    return settings.prefill_workers[1:] if settings.prefill_workers.startswith("@") else ""


def split_address(name: str, address: str) -> tuple[str, int]:
    """HOST:PORT (or [HOST]:PORT for IPv6) as a pair. Raises SettingsError naming the setting."""
    host, _, port = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:  # ambiguous: nothing separates the port from the address
        raise SettingsError(f"{name}: {address!r} is not of the form HOST:PORT or [IPV6]:PORT")
    digits = port.isascii() and port.isdigit() and len(port) <= 5
    if not _is_host(host) or not digits or int(port) > 65535:
        raise SettingsError(f"{name}: {address!r} is not an address of the form HOST:PORT")
    return host, int(port)


def join_address(host: str, port: int | str) -> str:
    """Join host and port as `split_address` accepts them, in readable form."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether a listener on this address can only be reached from this machine."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_host(host: str) -> bool:
    """Whether the resolver accepts `host` as a name or number; it need not exist."""
    try:
        return bool(host) and host.isprintable() and " " not in host and bool(host.encode("idna"))
    except UnicodeError:
        return False
