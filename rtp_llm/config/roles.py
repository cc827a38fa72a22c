# SPDX-License-Identifier: Apache-2.0
"""Settings of prefill/decode disaggregation that must fit together, checked before the start."""

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

# Of each transport that is a package: what brings it, and the names that its module may have.
_PACKAGES = {"nixl": "nixl-cu13", "mooncake": "mooncake-transfer-engine-non-cuda"}
_MODULES = {"nixl": ("nixl", "nixl_cu13", "nixl_cu12"), "mooncake": ("mooncake",)}

_PREFILL, _DECODE = ("prefill",), ("decode",)
# Of each setting of disaggregation but the role: the roles that read it. None: the router's.
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
# All that `rtp-llm route` reads.
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
    """Whether a transport's package is there; nothing is imported."""
    return any(map(importlib.util.find_spec, _MODULES[transport]))


def find_module(transport: str) -> str:
    """The name of an installed transport's module; of others the first it may have."""
    names = _MODULES[transport]
    return next(filter(importlib.util.find_spec, names), names[0])


def check_role(settings: Settings) -> None:
    """Raise SettingsError naming what does not fit the role."""
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
    """The same for an engine that no server is around."""
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
    """Raise SettingsError naming what a router does not read, or lacks."""
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
    """What was set and is not read is a mistake."""
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
    """HOST:PORT of each prefill worker, as the setting or its file has them now.

    Raises SettingsError for what is none, or no file.
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
    """The file that has them, which may have none yet; "": the setting has them itself."""
    return settings.prefill_workers[1:] if settings.prefill_workers.startswith("@") else ""


def split_address(name: str, address: str) -> tuple[str, int]:
    """HOST:PORT (or [HOST]:PORT for IPv6) as a pair. Raises SettingsError naming the setting."""
    host, _, port = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:  # where such an address ends and its port begins nobody can tell
        raise SettingsError(f"{name}: {address!r} is not of the form HOST:PORT or [IPV6]:PORT")
    digits = port.isascii() and port.isdigit() and len(port) <= 5
    if not _is_host(host) or not digits or int(port) > 65535:
        raise SettingsError(f"{name}: {address!r} is no address of the form HOST:PORT")
    return host, int(port)


def join_address(host: str, port: int | str) -> str:
    """What `split_address` takes apart; for people to read and to copy, too."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a listener of this address."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_host(host: str) -> bool:
    """The resolver takes it as a name or a number; whether it is there is another question."""
    try:
        return bool(host) and host.isprintable() and " " not in host and bool(host.encode("idna"))
    except UnicodeError:
        return False
