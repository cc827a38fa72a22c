"""One replica on the cluster: placed, watched, and placed again when it is lost."""

from __future__ import annotations

import logging
import os
import threading
import urllib.parse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rtp_llm.cluster.child_settings import child_environment
from rtp_llm.cluster.part import Part, new_key

if TYPE_CHECKING:
    from rtp_llm.config.settings import Settings

_logger = logging.getLogger("rtp_llm.cluster")
_AGAIN_SECONDS = 1.0
_LOOK_SECONDS = 0.2  # between two looks whether it is to stop
_WAIT_SECONDS = 10.0


class Replica(threading.Thread):
    """Reserves a bundle for each stage: its ranks are on one machine, stages need not be."""

    def __init__(
        self, number: int, settings: Settings, on_gpus: bool, moved: Callable[[str, int], None]
    ) -> None:
        """``moved`` is called in this thread with the address at which it serves from now on."""
        super().__init__(name=f"replica {number}", daemon=True)
        self._settings, self._on_gpus, self._moved = settings, on_gpus, moved
        self._stopped = threading.Event()

    def run(self) -> None:
        """Place it again and again, until `stop`."""
        from ray.exceptions import RayError

        while not self._stopped.is_set():
            try:
                reason = self._live()
            except RayError as error:
                reason = str(error).strip().splitlines()[0]
            if not self._stopped.wait(_AGAIN_SECONDS):
                _logger.warning("%s is lost: %s; it is placed again", self.name, reason)

    def stop(self) -> None:
        """Its processes end, and it is not placed again."""
        self._stopped.set()

    def _live(self) -> str:
        """From its placement to its end; why it ended."""
        import ray
        from ray.util.placement_group import placement_group, remove_placement_group

        ranks = self._settings.tensor_parallel_size
        bundle = {"CPU": ranks, **({"GPU": ranks} if self._on_gpus else {})}
        group = placement_group([bundle] * self._settings.pipeline_parallel_size, strategy="PACK")
        parts: list[Any] = []
        try:
            while not group.wait(_WAIT_SECONDS) and not self._stopped.is_set():
                _logger.info("%s waits for machines with %s free", self.name, bundle)
            parts = self._start(group, bundle)
            ends = [part.wait.remote() for part in parts]
            serves = parts[0].url.remote()
            if self._first([serves, *ends]) == serves and (url := ray.get(serves)):
                place = urllib.parse.urlsplit(url)
                _logger.info("%s is at %s", self.name, url)
                self._moved(place.hostname or "", place.port or 0)
            ended = self._first(ends)
            return "" if ended is None else f"its process ended with exit code {ray.get(ended)}"
        finally:
            for part in parts:
                ray.kill(part)
            remove_placement_group(group)

    def _first(self, awaited: list[Any]) -> Any:
        """The one that comes first; None when this replica is stopped before."""
        import ray

        while not self._stopped.is_set():
            if (found := ray.wait(awaited, num_returns=1, timeout=_LOOK_SECONDS))[0]:
                return found[0][0]
        return None

    def _start(self, group: Any, bundle: dict[str, int]) -> list[Any]:
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        actor = ray.remote(Part)
        parts = [
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
        host, port = ray.get(parts[0].address.remote())
        own: dict[str, Any] = {"host": host, "port": 0}
        key = ""
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
        return parts
