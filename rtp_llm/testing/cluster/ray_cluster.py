# SPDX-License-Identifier: Apache-2.0
"""As much of Ray as replicas use, in this process."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest


class RayError(Exception):
    """Of an actor whose machine is lost."""


class FakeRay:
    """Has room for as many groups as `room` says. Actors are objects of `part`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, part: Callable[[], Any]) -> None:
        self.room = 10**6
        self.groups: list[_Group] = []
        self.actors: list[_Actor] = []
        self._part = part
        group = {"placement_group": self._group, "remove_placement_group": self.groups.remove}
        strategy = {"PlacementGroupSchedulingStrategy": lambda *_, **__: None}
        for name, content in {
            "ray": self._names(),
            "ray.exceptions": {"RayError": RayError},
            "ray.util": {"get_node_ip_address": lambda: "127.0.0.1"},
            "ray.util.placement_group": group,
            "ray.util.scheduling_strategies": strategy,
        }.items():
            module = ModuleType(name)
            vars(module).update(content)
            monkeypatch.setitem(sys.modules, name, module)
        sys.modules["ray"].util = sys.modules["ray.util"]  # type: ignore[attr-defined]

    def _names(self) -> dict[str, Any]:
        context = SimpleNamespace(get_node_id=lambda: "here")
        return {
            "get": lambda of: of.result(),
            "wait": _wait,
            "remote": lambda _: SimpleNamespace(options=self._options),
            "kill": lambda actor: actor.kill(),
            "get_runtime_context": lambda: context,
        }

    def _options(self, **_: Any) -> Any:
        return SimpleNamespace(remote=self._actor)

    def _actor(self) -> _Actor:
        self.actors.append(_Actor(self._part()))
        return self.actors[-1]

    def _group(self, bundles: Sequence[dict[str, int]], **_: Any) -> _Group:
        self.groups.append(_Group(self))
        return self.groups[-1]


class _Group:
    def __init__(self, ray: FakeRay) -> None:
        self._ray = ray

    def wait(self, seconds: float) -> bool:
        fits = self._ray.groups.index(self) < self._ray.room
        if not fits:
            threading.Event().wait(min(seconds, 0.01))
        return fits


class _Actor:
    """Each call in a thread; `lose` makes those that are open fail."""

    def __init__(self, part: Any) -> None:
        self._part, self._open = part, list[Future[Any]]()
        self.killed = False

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(remote=lambda *words: self._call(name, *words))

    def _call(self, name: str, *words: Any) -> Future[Any]:
        found: Future[Any] = Future()
        self._open.append(found)

        def run() -> None:
            try:
                value = getattr(self._part, name)(*words)
            except Exception as error:
                found.set_exception(error)
            else:
                if not found.done():
                    found.set_result(value)

        if self.killed:
            found.set_exception(RayError("The actor died.\nMore of it"))
        else:
            threading.Thread(target=run, daemon=True).start()
        return found

    def lose(self) -> None:
        self.killed = True
        for each in self._open:
            if not each.done():
                each.set_exception(RayError("The actor died.\nMore of it"))

    def kill(self) -> None:
        self.killed = True


def _wait(
    awaited: list[Future[Any]], num_returns: int = 1, timeout: float | None = None
) -> tuple[list[Future[Any]], list[Future[Any]]]:
    done, _ = wait(awaited, timeout, FIRST_COMPLETED if num_returns == 1 else "ALL_COMPLETED")
    return [each for each in awaited if each in done], [e for e in awaited if e not in done]
