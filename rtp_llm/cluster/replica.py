"""One replica on the cluster: placed, watched, and placed again when it is lost."""

from __future__ import annotations

import logging
import os
import threading
import urllib.parse
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from rtp_llm.cluster.child_settings import child_environment
from rtp_llm.cluster.part import Part, new_key
from rtp_llm.config.roles import join_address

if TYPE_CHECKING:
    from rtp_llm.config.settings import Settings

_logger = logging.getLogger("rtp_llm.cluster")
_AGAIN_SECONDS = 1.0
_LOOK_SECONDS = 0.2  # between two looks whether it is to stop
_WAIT_SECONDS = 5.0
_STOP_SECONDS = 2.0  # for a machine that may be gone


class Replica(threading.Thread):
    """Reserves a bundle for each stage: its ranks are on one machine, stages need not be."""

    def __init__(
        self,
        name: str,
        settings: Settings,
        on_gpus: bool,
        key: str,
        moved: Callable[[str, int], None],
    ) -> None:
        """``settings`` have its role; ``key`` of workers that have several, or "".

        ``moved`` is called in this thread with the address at which it serves from now on: of a
        prefill worker the one that decode workers ask.
        """
        super().__init__(name=name, daemon=True)
        self._settings, self._on_gpus, self._key, self._moved = settings, on_gpus, key, moved
        self._stopped = threading.Event()
        self._telling = threading.Lock()
        self._told: Any = None  # the actor of a decode worker
        self._prefill_workers: Sequence[str] = ()
        self._lists = 0
        self._address = "", 0

    def run(self) -> None:
        """Place it again and again, until `stop`."""
        from ray.exceptions import RayError

        while not self._stopped.is_set():
            try:
                reason = self._live()
            except (RayError, ConnectionError, ValueError) as error:  # the last two of a client
                reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            if not self._stopped.wait(_AGAIN_SECONDS):
                _logger.warning("%s is lost: %s; it is placed again", self.name, reason)

    def stop(self) -> None:
        """Its processes end, and it is not placed again."""
        self._stopped.set()

    def tell(self, prefill_workers: Sequence[str]) -> None:
        """Whom a decode worker may ask from now on, wherever it is; any thread."""
        with self._telling:
            self._prefill_workers = prefill_workers
            self._lists += 1
            if self._told is not None:
                self._told.tell.remote(self._lists, prefill_workers)

    def _live(self) -> str:
        """From its placement to its end; why it ended."""
        import ray
        from ray.util.placement_group import placement_group, remove_placement_group

        ranks = self._settings.tensor_parallel_size
        bundle = {"CPU": ranks, **({"GPU": ranks} if self._on_gpus else {})}
        if (stages := self._settings.pipeline_parallel_size) > 1:
            group = placement_group([bundle] * stages, strategy="PACK")
        else:  # on the driver's machine while it has room: answers need not cross the network
            here = ray.get_runtime_context().get_node_id()
            group = placement_group([bundle], strategy="STRICT_PACK", _soft_target_node_id=here)
        parts: list[Any] = []
        try:
            if not self._has_room(group, bundle):
                return ""
            parts = self._actors(group, bundle)
            self._start(parts)
            ends = [part.wait.remote() for part in parts]
            serves = parts[0].url.remote()
            if self._first([serves, *ends]) == serves and (url := ray.get(serves)):
                _logger.info("%s is at %s", self.name, url)
                place = urllib.parse.urlsplit(url)
                if self._settings.role == "prefill":
                    self._moved(*self._address)
                else:
                    self._moved(place.hostname or "", place.port or 0)
            ended = self._first(ends)
            return "" if ended is None else f"its process ended with exit code {ray.get(ended)}"
        finally:
            with self._telling:
                self._told = None
            if parts:
                stops = [part.stop.remote() for part in parts]
                ray.wait(stops, num_returns=len(stops), timeout=_STOP_SECONDS)
            for part in parts:
                ray.kill(part)
            remove_placement_group(group)

    def _has_room(self, group: Any, bundle: dict[str, int]) -> bool:
        """Wait until there is; False: this replica is stopped."""
        while not group.wait(_WAIT_SECONDS) and not self._stopped.is_set():
            _logger.info("%s waits for machines with %s free", self.name, bundle)
        return not self._stopped.is_set()

    def _first(self, awaited: list[Any]) -> Any:
        """The one that comes first; None when this replica is stopped before."""
        import ray

        while not self._stopped.is_set():
            if (found := ray.wait(awaited, num_returns=1, timeout=_LOOK_SECONDS))[0]:
                return found[0][0]
        return None

    def _actors(self, group: Any, bundle: dict[str, int]) -> list[Any]:
        """One for each stage, on its machine."""
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        actor = ray.remote(Part)
        return [
            actor.options(
                num_cpus=bundle["CPU"],
                num_gpus=bundle.get("GPU", 0),
                max_concurrency=3,
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    group, placement_group_bundle_index=stage
                ),
            ).remote()
            for stage in range(self._settings.pipeline_parallel_size)
        ]

    def _start(self, parts: list[Any]) -> None:
        import ray

        host, port = self._address = ray.get(parts[0].address.remote())
        own: dict[str, Any] = {"host": host, "port": 0}
        if self._settings.role == "prefill":
            own["prefill_address"] = join_address(host, port)
        key = self._key
        if len(parts) > 1:
            key = new_key()
            own |= {"nnodes": len(parts), "master_addr": host, "master_port": port}
            own["restart_engine"] = 0  # a part that is lost ends the others, and all are placed
        started = [
            part.start.remote(
                self._settings.model,
                child_environment(
                    self._settings, os.environ, **own, **({"node_rank": n} if n else {})
                ),
                key,
            )
            for n, part in enumerate(parts)
        ]
        ray.get(started)
        if self._settings.role == "decode":
            with self._telling:
                self._told = parts[0]
                self._told.tell.remote(self._lists, self._prefill_workers)
