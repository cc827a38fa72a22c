# SPDX-License-Identifier: Apache-2.0
"""The kinds of bodies that endpoints take, declared next to the function that prepares each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from rtp_llm.server.turn.prepared import Prepared
from rtp_llm.server.turn.served_model import ServedModel

P = TypeVar("P", bound=Prepared)
P_co = TypeVar("P_co", bound=Prepared, covariant=True)


@dataclass(frozen=True, eq=False)
class BodyKind(Generic[P_co]):
    """A kind of body.

    `name`: identifies it to other processes; `prepare`: raises ApiError; `response_options`: their
    types in its PreparedJobs, none if the result is always a PreparedBody; `renders`: it renders
    the chat template, which can take long for a short body; `compiles`: it compiles a grammar;
    `pools`: the result is a PreparedPrompts or a PreparedBody.
    """

    name: str
    prepare: Callable[[bytes, ServedModel], P_co]
    response_options: tuple[type, ...] = ()
    renders: bool = True
    compiles: bool = False
    pools: bool = False


class Preprocessing(Protocol):
    """Prepares bodies wherever that delays nobody else."""

    async def run(self, kind: BodyKind[P], body: bytes, model: ServedModel) -> P:
        """Prepare a body.

        Raises ApiError: the request's own, 400 if preparing it takes too much time or memory,
        503 if the queue is full.
        """
        ...
