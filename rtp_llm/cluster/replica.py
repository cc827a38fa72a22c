# SPDX-License-Identifier: Apache-2.0
"""One replica on the cluster: placed, watched, and placed again when it is lost."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from rtp_llm.cluster.child_settings import child_environment
from rtp_llm.cluster.part import Part, Place, new_key
from rtp_llm.config.roles import join_address

if TYPE_CHECKING:
    from rtp_llm.config.settings import Settings

_logger = logging.getLogger("rtp_llm.cluster")
_AGAIN_SECONDS = 1.0
_LOOK_SECONDS = 0.2  # between checks for a stop request
_HEALTH_SECONDS = 0.5  # between health checks
_STOP_SECONDS = 2.0  # timeout for a machine that may be gone


class _StoppedError(Exception):
    """Stop was requested; abandons whatever is in progress."""


class Replica(threading.Thread):
    """Reserves one bundle per pipeline stage: each stage is on one machine, stages may be apart."""

    phase = "not placed yet"
    """Human-readable status; empty while it serves."""

    def __init__(
        self,
        name: str,
        settings: Settings,
        on_gpus: bool,
        key: str,
        moved: Callable[[str, int], None],
    ) -> None:
        """``settings`` include its role; ``key``: the secret shared by the roles, or "".

        ``moved`` is called in this thread with the new serving address: for a prefill worker,
        the address that decode workers connect to.
        """
        super().__init__(name=name, daemon=True)
        self._settings, self._on_gpus, self._key, self._moved = settings, on_gpus, key, moved
        self._stopped = threading.Event()
        self._telling = threading.Lock()
        self._decode_part: Any = None  # the actor of a decode worker
        self._prefill_workers: Sequence[str] = ()
        self._lists = 0
        self._place = Place("", 0, 0)
        self._role = settings.role

    def run(self) -> None:
        """Place it again and again, until `stop`."""
        from ray.exceptions import RayError

        while True:
            try:
                reason = self._live()
            except _StoppedError:
                return
            except (
                RayError,
                ConnectionError,
                ValueError,
            ) as error:  # the last two: Ray client
                reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            self.phase = f"lost, to be placed again: {reason}"
            if self._stopped.wait(_AGAIN_SECONDS):
                return
            _logger.warning("%s is lost: %s; it is placed again", self.name, reason)

    def stop(self) -> None:
        """End its processes and do not place it again."""
        self._stopped.set()

    def notify(self, prefill_workers: Sequence[str]) -> None:
        """Set the prefill workers that a decode worker may use, wherever it runs; thread-safe."""
        with self._telling:
            self._prefill_workers = prefill_workers
            self._lists += 1
            if self._decode_part is not None:
                self._decode_part.notify.remote(self._lists, prefill_workers)

    def _live(self) -> str:
        """Run one placement until it ends, and return why it ended."""
        import ray
        from ray.util.placement_group import placement_group, remove_placement_group

        bundle = self._bundle()
        if (stages := self._settings.pipeline_parallel_size) > 1:
            group = placement_group([bundle] * stages, strategy="PACK")
        else:  # prefer the driver's machine: answers need not cross the network
            here = ray.get_runtime_context().get_node_id()
            group = placement_group([bundle], strategy="STRICT_PACK", _soft_target_node_id=here)
        parts: list[Any] = []
        try:
            self._await_room(group, bundle, stages)
            parts = self._actors(group, bundle)
            self._start(parts)
            ends = [part.wait.remote() for part in parts]
            self._await_health(parts[0], ends)
            ended = self._first(ends)
            return f"its process ended with exit code {ray.get(ended)}"
        finally:
            with self._telling:
                self._decode_part = None
            if parts:
                stops = [part.stop.remote() for part in parts]
                ray.wait(stops, num_returns=len(stops), timeout=_STOP_SECONDS)
            for part in parts:
                ray.kill(part)
            remove_placement_group(group)

    def _bundle(self) -> dict[str, int]:
        """The resources that one stage reserves on a machine."""
        ranks = self._settings.tensor_parallel_size
        return {"CPU": ranks, **({"GPU": ranks} if self._on_gpus else {})}

    def _await_room(self, group: Any, bundle: dict[str, int], stages: int) -> None:
        what = " and ".join(f"{number} {kind}" for kind, number in bundle.items())
        times = f"{stages} times " if stages > 1 else ""
        self.phase = f"no room yet: it needs {times}{what}"
        while not group.wait(_LOOK_SECONDS):
            self._look()

    def _await_health(self, part: Any, ends: list[Any]) -> None:
        """Wait until it accepts requests, and announce that, or until its processes end."""
        import ray

        place = self._place
        while True:
            health = self._get(part.health.remote())
            if health.status == 200:
                break
            self.phase = f"placed on {place.host}, {health.words}"
            if ray.wait(ends, num_returns=1, timeout=_HEALTH_SECONDS)[0]:
                return
            self._look()
        self.phase = ""
        _logger.info("%s is at http://%s", self.name, join_address(place.host, place.port))
        self._moved(place.host, place.meeting_port if self._role == "prefill" else place.port)

    def _look(self) -> None:
        if self._stopped.is_set():
            raise _StoppedError

    def _first(self, awaited: list[Any]) -> Any:
        """The first of the references to become ready."""
        import ray

        while not (found := ray.wait(awaited, num_returns=1, timeout=_LOOK_SECONDS)[0]):
            self._look()
        return found[0]

    def _get(self, awaited: Any) -> Any:
        """The value of a reference once it is ready."""
        import ray

        return ray.get(self._first([awaited]))

    def _actors(self, group: Any, bundle: dict[str, int]) -> list[Any]:
        """Create one actor per stage, on the machine of its bundle."""
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        actor = ray.remote(Part)
        return [
            actor.options(
                num_cpus=bundle["CPU"],
                num_gpus=bundle.get("GPU", 0),
                max_concurrency=4,  # wait, health, tell, stop
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    group, placement_group_bundle_index=stage
                ),
            ).remote()
            for stage in range(self._settings.pipeline_parallel_size)
        ]

    def _start(self, parts: list[Any]) -> None:
        self.phase = "placed, starting"
        place = self._place = self._get(parts[0].place.remote())
        own: dict[str, Any] = {"host": place.host, "port": place.port}
        if self._role == "prefill":
            own["prefill_address"] = join_address(place.host, place.meeting_port)
        key = self._key
        if len(parts) > 1:
            key = new_key()
            own |= {"nnodes": len(parts), "master_addr": place.host}
            own["master_port"] = place.meeting_port
            own["restart_engine"] = 0  # losing one part ends the others; then all are placed again
        for n, part in enumerate(parts):
            rank = {"node_rank": n} if n else {}
            environ = child_environment(self._settings, os.environ, **own, **rank)
            self._get(part.start.remote(self._settings.model, environ, key))
        if self._role == "decode":
            with self._telling:
                self._decode_part = parts[0]
                self._decode_part.notify.remote(self._lists, self._prefill_workers)
