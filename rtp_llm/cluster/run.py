# SPDX-License-Identifier: Apache-2.0
"""`rtp-llm serve --cluster`: place replicas on Ray and route requests to them."""

from __future__ import annotations

import asyncio
import functools
import importlib.util
import os
import socket
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rtp_llm.cluster.child_settings import replica_settings
from rtp_llm.cluster.part import new_key
from rtp_llm.cluster.replica import Replica
from rtp_llm.config.options import SettingsError
from rtp_llm.config.roles import join_address
from rtp_llm.distributed.multicast import NO_MULTICAST
from rtp_llm.router.run import serve_router
from rtp_llm.router.workers import Worker, Workers
from rtp_llm.server.http.listener import bind, close
from rtp_llm.server.http.log import configure_logging
from rtp_llm.server.http.start_error import StartError

if TYPE_CHECKING:
    from rtp_llm.config.settings import Settings


def check_cluster(settings: Settings) -> None:
    """Raise SettingsError for settings that a driver does not support."""
    packages = ["ray", *(["grpc"] if settings.cluster.startswith("ray://") else [])]
    if not all(map(importlib.util.find_spec, packages)):
        raise SettingsError("cluster: needs Ray: pip install 'ray[client]>=2.40,<3'")
    address = settings.cluster
    if address != "auto" and not address.startswith("ray://") and ":" not in address:
        raise SettingsError(f"cluster: {address!r} is neither auto nor ray://HOST:PORT")
    if settings.nnodes > 1:
        raise SettingsError("nnodes: Ray places nodes; leave it out, or leave out --cluster")
    if settings.role != "both":
        raise SettingsError(
            "role: --prefill-replicas gives replicas on Ray their roles; leave it out, or leave "
            "out --cluster"
        )
    replica_settings(settings)


def serve_on_ray(settings: Settings) -> int:
    """Serve until a signal; returns the exit code.

    Raises:
        SettingsError: before anything was started.
        StartError: no cluster can be reached.
    """
    check_cluster(settings)
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ.update(NO_MULTICAST)
    import ray

    listener = bind(settings)
    queue = configure_logging(settings.log_level, settings.log_format)
    try:
        try:
            ray.init(address=settings.cluster, log_to_driver=True)
        except ConnectionError as error:
            raise StartError(f"cluster: no Ray cluster at {settings.cluster}: {error}") from error
        on_gpus = settings.device_type != "cpu" and ray.cluster_resources().get("GPU", 0) > 0
        return asyncio.run(_serve(settings, on_gpus, listener))
    finally:
        ray.shutdown()  # disconnecting ends this driver's actors
        close(listener)
        queue.stop()


def _move(loop: asyncio.AbstractEventLoop, worker: Worker, host: str, port: int) -> None:
    loop.call_soon_threadsafe(functools.partial(worker.move, host, port))


class _PrefillWorkers:
    """Tracks the addresses of prefill workers and sends them to the decode workers."""

    def __init__(self, count: int) -> None:
        self._addresses = [""] * count
        self._lock = threading.Lock()
        self.asking: list[Replica] = []

    def move(self, number: int, host: str, port: int) -> None:
        """Record a replica's new address; called in the thread of replica ``number``."""
        with self._lock:
            self._addresses[number] = join_address(host, port)
            for each in self.asking:
                each.notify([address for address in self._addresses if address])


async def _serve(settings: Settings, on_gpus: bool, listener: socket.socket) -> int:
    loop = asyncio.get_running_loop()
    roles = replica_settings(settings)
    numbers = range(settings.data_parallel_size)
    workers = Workers([f"http://replica-{number}:80" for number in numbers])
    key = new_key() if settings.prefill_replicas else ""
    prefill, place = _PrefillWorkers(settings.prefill_replicas), roles.get("decode", settings)
    for number, worker in zip(numbers, workers.all, strict=True):
        worker.move("127.0.0.1", 0)  # nothing listens there
        moved = functools.partial(_move, loop, worker)
        prefill.asking.append(Replica(f"replica {number}", place, on_gpus, key, moved))
    replicas = list(prefill.asking)
    for number in range(settings.prefill_replicas):
        name, move = f"prefill replica {number}", functools.partial(prefill.move, number)
        replicas.append(Replica(name, roles["prefill"], on_gpus, key, move))
    for replica in replicas:
        replica.start()
    try:
        return await serve_router(settings, workers, listener, lambda: _awaited(replicas))
    finally:
        for replica in replicas:
            replica.stop()
        for replica in replicas:
            await asyncio.to_thread(replica.join)


def _awaited(replicas: Sequence[Replica]) -> list[str]:
    """The status of each replica that is not serving yet."""
    return [f"{each.name} ({phase})" for each in replicas if (phase := each.phase)]
