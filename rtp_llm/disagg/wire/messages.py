# SPDX-License-Identifier: Apache-2.0
"""Messages between a decode worker and a prefill worker; blocks take another way."""

from __future__ import annotations

import msgspec

from rtp_llm.engine.messages import FailureKind, TokenLogprob
from rtp_llm.request.constraints import Grammar, Thinking
from rtp_llm.request.sampling_params import SamplingParams

# Changes with every change of these structs.
PROTOCOL = 8
# The longest accepted message: a prompt of 2^24 tokens takes 80 MiB.
LONGEST_MESSAGE = 96 * 2**20
# The same of the first one that a prefill worker hears: anybody may come, and gets no more memory.
LONGEST_HELLO = 64 * 2**10
# And of a decode worker, which goes to whom it was told of: an offer names all memory, and what is
# needed to reach it by each device.
LONGEST_WELCOME = 4 * 2**20


NONCE_BYTES = 32


class Challenge(msgspec.Struct, tag="challenge", frozen=True, kw_only=True):
    """First message of a prefill worker with a key: a request to prove knowledge of it."""

    nonce: bytes


class Response(msgspec.Struct, tag="response", frozen=True, kw_only=True):
    """A decode worker's answer: its own nonce, and its proof over both."""

    nonce: bytes
    mac: bytes


class Proof(msgspec.Struct, tag="proof", frozen=True, kw_only=True):
    """The proof of the prefill worker, sent after the Response."""

    mac: bytes


class Hello(msgspec.Struct, tag="hello", frozen=True, kw_only=True):
    """A decode worker's first message: its protocol and the layout of its blocks."""

    protocol: int
    fingerprint: str


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """A transport by which a prefill worker's blocks may be had.

    ``address`` is in the transport's own format; ``regions`` are (address, bytes, device)
    of the memory that a reader may ask for, of transports by which the decode worker reads itself;
    ``rank``: the tensor-parallel rank that has these blocks, of which a transport has one offer
    each.
    """

    transport: str
    address: bytes
    regions: list[tuple[int, int, int]] = []
    rank: int = 0


class Welcome(msgspec.Struct, tag="welcome", frozen=True, kw_only=True):
    """The prefill worker's handshake: the transports it offers. Decode workers choose.

    All but the first two may be missing: another version's is read as far as its number.
    """

    protocol: int
    fingerprint: str
    offers: list[Offer] = []


class Prefill(msgspec.Struct, tag="prefill", frozen=True, kw_only=True):
    """Compute this prompt and sample its first token; its blocks go by this transport.

    ``name`` is a number of 63 bits that nobody used so far, among all workers. ``params`` has
    the seed that the answer is sampled with; ``grammar``, ``thinking`` and ``tenant`` are the
    request's. ``timeout`` in seconds: nobody waits for it any longer.
    """

    name: int
    prompt_token_ids: list[int]
    params: SamplingParams
    extra_key: str
    timeout: float = msgspec.field(name="patience")  # as the protocol has called it
    transport: str
    grammar: Grammar | None = None
    thinking: Thinking | None = None
    tenant: str = ""
    tenant_weight: float = 1.0


class Finished(msgspec.Struct, tag="finished", frozen=True, kw_only=True):
    """The blocks were loaded or are not needed any more, so they can be released."""

    name: int


class Ping(msgspec.Struct, tag="ping", frozen=True, kw_only=True):
    """Liveness check by a waiting decode worker; answered regardless of what is computed."""


class Pong(msgspec.Struct, tag="pong", frozen=True, kw_only=True):
    """The prefill worker is there."""


class Stored(msgspec.Struct, tag="stored", frozen=True, kw_only=True):
    """Blocks of a layer are there to be read: ``rows`` int64 [N, 7] as the store has them.

    They are valid as long as the generation counter at address ``counter`` is the name.
    """

    name: int
    layer: int
    rows: bytes
    counter: int = msgspec.field(name="word")  # as the protocol has called it


class Prefilled(msgspec.Struct, tag="prefilled", frozen=True, kw_only=True):
    """The prompt is computed; its last blocks are in the store or on their way there.

    ``cached_tokens`` of it came from the prefix cache. ``logprobs`` are those of the first token,
    if requested. ``draft_state`` is the state from which drafts after that token continue, in the
    format of the drafter that both workers use; empty if it needs none.
    """

    name: int
    token: int
    cached_tokens: int
    logprobs: TokenLogprob | None
    draft_state: bytes = b""


class Failed(msgspec.Struct, tag="failed", frozen=True, kw_only=True):
    """The prompt was refused or given up."""

    name: int
    kind: FailureKind
    message: str


class Load(msgspec.Struct, tag="load", frozen=True, kw_only=True):
    """The load of a prefill worker: tokens of prompts that are not computed yet."""

    waiting_tokens: int


ToPrefill = Hello | Prefill | Finished | Ping
ToDecode = Challenge | Proof | Welcome | Pong | Stored | Prefilled | Failed | Load
