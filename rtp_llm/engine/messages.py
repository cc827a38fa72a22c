# SPDX-License-Identifier: Apache-2.0
"""What the engine process and its client say to each other: msgspec structs, token ids only.

A sequence is (request_id, index) with 0 <= index < n. Columns are raw bytes of the machine's own
(little-endian) numbers, so that a step with many rows costs one encode: read them with
``memoryview(column).cast("q")`` for int64, ``"i"`` for int32, ``"f"`` for float32.
"""

from __future__ import annotations

import logging
import resource
from collections.abc import Callable
from typing import Literal

import msgspec

from rtp_llm.config.tasks import Task
from rtp_llm.engine.profile_messages import Profile, Profiled
from rtp_llm.request.add_prompts import AddPrompts
from rtp_llm.request.beam_search import BeamSearch
from rtp_llm.request.constraints import Grammar, Thinking
from rtp_llm.request.mm_features import MultiModalFeature
from rtp_llm.request.params import PoolingParams, PoolingType, RequestParams
from rtp_llm.request.sampling_params import SamplingParams

FinishReason = Literal["stop", "length", "abort", "error"]
SequenceError = Literal["model_produced_nan", "no_allowed_tokens", "too_few_sequences"]
FailureKind = Literal["invalid", "queue_full", "internal", "stalled"] | SequenceError

FINISH_NONE, FINISH_EOS, FINISH_STOP_TOKEN, FINISH_LENGTH, FINISH_NAN, FINISH_BANNED = range(6)
FINISH_PROMPT = 6  # nothing was to be sampled
FINISH_NO_BEAM = 7  # a beam search gives no sequence under this index
FINISH_REASONS: tuple[FinishReason | None, ...] = (
    None,
    "stop",
    "stop",
    "length",
    "error",
    "error",
    "stop",
    "error",
)
SEQUENCE_ERRORS: dict[int, SequenceError] = {
    FINISH_NAN: "model_produced_nan",
    FINISH_BANNED: "no_allowed_tokens",
    FINISH_NO_BEAM: "too_few_sequences",
}
ERROR_MESSAGES: dict[SequenceError, str] = {
    "model_produced_nan": (
        "The model's logits for this request have NaN or infinity, so no token can be sampled. "
        "Either activations overflow (try --dtype bfloat16 or float32, --quantization none and "
        "--kv-cache-dtype auto) or weights are damaged (compare the files' checksums)."
    ),
    "no_allowed_tokens": (
        "The settings of this request forbid every token: its grammar, allowed_token_ids, "
        "bad_words, logit_bias, min_tokens, no_repeat_ngram_size and logits processors leave none "
        "to sample."
    ),
    "too_few_sequences": (
        "The settings of this request allow fewer sequences than its beam search is asked for: "
        "lower n, or loosen its grammar, allowed_token_ids or bad_words."
    ),
}

# Called after a step with its sequences, the tokens that it computed, and the new ones: what of
# prompts was computed when their first tokens came, and all tokens drawn.
OnStep = Callable[[int, int, int], None]

# A sequence's number in the scheduler is request_id << 7 | index: n is at most 128.
INDEX_BITS = 7
INDEX_MASK = (1 << INDEX_BITS) - 1
MAX_REQUEST_ID = (1 << (63 - INDEX_BITS)) - 1


class AddRequest(msgspec.Struct, tag="add", frozen=True, kw_only=True):
    """Start a request. ``request_id`` is unused so far, 0 <= request_id <= MAX_REQUEST_ID.

    ``params`` say what is asked for: sampled tokens, scores of the prompt, or a vector for it.
    ``extra_key`` separates prefix caches (tenant, adapter): requests share blocks, and answers that
    suffix decoding drafts from, only within one.
    ``number`` counts the requests of an engine of several ranks from 1.
    ``mm_features`` bring embeddings for placeholders of the prompt, by offset. ``mrope_positions``
    (int32 [3, P]: time, height, width) are where the prompt's tokens are for a model with M-RoPE,
    and ``mrope_position_delta`` is added to the positions of the output; without them a token's
    position is its index.
    ``second_text``: where the second of two texts begins in the prompt, for models that distinguish
    them; 0: it is one text.
    With ``beam_search`` the ``n`` sequences are the best ones that a search finds; they come at its
    end, each as a whole, with the log-probabilities of its tokens.
    ``grammar`` constrains the answer, with ``thinking`` only after that has ended. Waiting requests
    of one priority are scheduled fairly among ``tenant``s, by their weights.
    """

    request_id: int
    prompt_token_ids: list[int]
    params: RequestParams
    extra_key: str = ""
    number: int = 0
    grammar: Grammar | None = None
    thinking: Thinking | None = None
    beam_search: BeamSearch | None = None
    tenant: str = ""
    tenant_weight: float = 1.0
    mm_features: list[MultiModalFeature] = []
    mrope_positions: bytes = b""
    mrope_position_delta: int = 0
    second_text: int = 0

    @property
    def sampling(self) -> SamplingParams:
        """The ``params`` of a request that asks for tokens."""
        assert isinstance(self.params, SamplingParams)
        return self.params

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self.prompt_token_ids)


class Wake(msgspec.Struct, tag="wake", frozen=True, kw_only=True):
    """Another rank of the engine got the request of this ``number``: step with it."""

    number: int


class AbortRequest(msgspec.Struct, tag="abort", frozen=True, kw_only=True):
    """Stop sequences, (request_id, index) each, at any state; unknown ones are ignored."""

    sequences: list[tuple[int, int]]


class Shutdown(msgspec.Struct, tag="shutdown", frozen=True, kw_only=True):
    """End the engine process; whatever still runs is dropped."""


class LogprobColumns(msgspec.Struct, frozen=True, kw_only=True):
    """Log-probabilities of the tokens that asked: L of them, ``width`` values kept for each.

    They are of the model's own distribution, before penalties, biases and temperature.
    """

    places: bytes  # int32 [L], which token of the step: row x K + its place in the row
    wanted: bytes  # int32 [L], how many of the top values the request asked for
    chosen: bytes  # float32 [L]
    top_ids: bytes  # int32 [L, width]
    top_values: bytes  # float32 [L, width]
    width: int


class PoolColumns(msgspec.Struct, frozen=True, kw_only=True):
    """The vectors of P prompts that ended in the step."""

    request_ids: bytes  # int64 [P]
    sizes: bytes  # int32 [P], numbers of each vector
    values: bytes  # float32, the vectors one after the other


class StepOutput(msgspec.Struct, tag="step", frozen=True, kw_only=True):
    """What one step produced: R rows, one for each sequence that drew tokens in it.

    ``tokens`` is [R, K] padded with -1; K is 1 without drafts. ``num_tokens`` says how many of a
    row are real, a final end-of-sequence or stop token included. A step that only computed prompt
    chunks has R = 0. A row that ends with an error (FINISH_NAN, FINISH_BANNED) may have no tokens,
    one of a request without sampling (FINISH_PROMPT) has none.
    """

    num_rows: int
    request_ids: bytes  # int64 [R]
    indexes: bytes  # int32 [R]
    tokens: bytes  # int32 [R, K]
    num_tokens: bytes  # int32 [R]
    finish: bytes  # uint8 [R], FINISH_*
    cached_tokens: bytes  # int32 [R], prompt tokens served from the prefix cache
    queue_seconds: bytes = b""  # float32 [R], from arrival to admission; empty: not known
    num_drafts: bytes = b""  # int32 [R], verified in the step; empty: none
    logprobs: LogprobColumns | None = None
    pooled: PoolColumns | None = None
    num_sequences: int = 0
    batch_tokens: int = 0
    seconds: float = 0.0


class PromptLogprobs(msgspec.Struct, tag="prompt_logprobs", frozen=True, kw_only=True):
    """Log-probabilities of prompt tokens ``start`` to ``start + P - 1`` given those before them.

    A chunked prompt sends several; all of them come before the request's first token.
    """

    request_id: int
    start: int
    token_ids: bytes  # int32 [P]
    chosen: bytes  # float32 [P]
    top_ids: bytes  # int32 [P, width]
    top_values: bytes  # float32 [P, width]
    ranks: bytes  # int32 [P], of the prompt's own tokens; 1 is the most likely
    width: int


class RequestFailed(msgspec.Struct, tag="failed", frozen=True, kw_only=True):
    """The engine did not take the request, or gave it up; the engine itself goes on."""

    request_id: int
    kind: FailureKind
    message: str


# What EngineStats.transfers may have, by name, with its meaning: of a prefill worker, then of a
# decode worker. Counters only grow; gauges are what is so now.
TRANSFER_COUNTERS = {
    "prompts": "Prompts that decode workers asked for.",
    "stored_bytes": "Bytes offered to decode workers.",
    "store_seconds": "Time of the writer's threads for that.",
    "asked": "Prompts that prefill workers were asked for.",
    "retries": "Of these, what was asked of another one after one had failed.",
    "delivered": "Of these, what came.",
    "fallbacks": "Of these, what was computed here in the end.",
    "seconds": "From asking to the last block, summed over those that came.",
}
TRANSFER_GAUGES = {
    "writer_queue": "Layers that no thread of the writer has taken yet.",
    "awaited_prompts": "Prompts of prefill workers that have not come and not failed.",
}


class EngineStats(msgspec.Struct, tag="stats", frozen=True, kw_only=True):
    """Sent every 0.25 s from a thread of its own, also while a step runs: the heartbeat.

    Counters grow from the start of the process. ``step_age`` is for how long the present step has
    been running, 0 between steps.
    """

    running: int = 0
    waiting: int = 0
    free_blocks: int = 0
    total_blocks: int = 0
    cached_blocks: int = 0
    kv_used_ratio: float = 0.0
    preemptions: int = 0
    prefix_hit_tokens: int = 0
    prefix_query_tokens: int = 0
    steps: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    degenerate_rows: int = 0
    batch_size: int = 0
    step_seconds: float = 0.0
    step_age: float = 0.0
    resident_bytes: int = 0
    receiving: int = 0  # sequences that wait for a prompt of another worker
    held: int = 0  # sequences whose blocks a transfer reads or writes
    spec_decode_num_speculative_tokens: int = 0  # of a sequence in a step, at present
    spec_decode_num_drafts: int = 0  # sequences that verified drafts, in all steps
    spec_decode_num_draft_tokens: int = 0
    spec_decode_num_accepted_tokens: int = 0
    spec_decode_accepted_per_pos: tuple[int, ...] = ()  # by place among the drafts
    transfers: dict[str, float] = {}
    transfer_failures: dict[str, int] = {}  # by code
    loaded_bytes: int = 0  # of the checkpoint, while the model is being loaded
    bytes_to_load: int = 0


class EngineLog(msgspec.Struct, tag="log", frozen=True, kw_only=True):
    """A line of the engine process's log, with the level of the logging module."""

    level: int
    message: str
    logger: str = "rtp_llm.engine"


class EngineReady(msgspec.Struct, tag="ready", frozen=True, kw_only=True):
    """The model is loaded and warm; facts of what was built."""

    max_model_len: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    num_blocks: int
    block_size: int
    max_running: int
    max_queued: int
    dtype: str
    quantization: str
    device: str
    architecture: str
    weight_bytes: int
    kv_cache_bytes: int
    num_threads: int
    start_seconds: float
    prefill_address: str = ""  # where decode workers find this one
    tasks: tuple[Task, ...] = ("generate",)
    pooling: PoolingParams | None = None  # of requests that leave it open
    scored: PoolingType = "last"  # the states that scores and labels are made from
    vector_size: int = 0  # numbers of an embedding
    # Sizes that embeddings may be cut to; empty: any, None: none.
    matryoshka: tuple[int, ...] | None = None
    lockstep: bool = False  # all ranks step together; none goes on without the others
    embedding_width: int = 0  # of a row of MultiModalFeature.data; 0: it takes token ids alone
    mrope: bool = False  # positions have three axes
    free_bytes: int = 0  # of a device with its own memory: what was free before anything was loaded


class EngineFatal(msgspec.Struct, tag="fatal", frozen=True, kw_only=True):
    """The engine cannot go on (or could not start); the process ends after it."""

    message: str


# What a stream of deltas answers.
ClientRequest = AddRequest | AddPrompts
ToEngine = AddRequest | AddPrompts | Wake | AbortRequest | Profile | Shutdown
# What steps produce.
EngineOutput = StepOutput | PromptLogprobs | RequestFailed
FromEngine = (
    StepOutput
    | PromptLogprobs
    | RequestFailed
    | EngineStats
    | EngineLog
    | Profiled
    | EngineReady
    | EngineFatal
)


class TokenLogprob(msgspec.Struct, frozen=True):
    """One token's log-probability and the most likely (token id, log-probability) in its place.

    ``rank``: how many tokens are at least as likely as this one, itself included; of prompt tokens.
    """

    token_id: int
    logprob: float
    top: list[tuple[int, float]]
    rank: int | None = None


class SequenceDelta(msgspec.Struct, frozen=True, kw_only=True):
    """What one sequence gained since its last delta.

    ``token_ids`` holds every sampled token, a final end-of-sequence or stop token included;
    ``stop_token_id`` is that token, so text leaves out the last id whenever it is not None.
    ``prompt_logprobs`` comes once, with the request's first tokens; its first entry is None.
    ``draft_tokens`` were verified for it, and so many of them accepted. ``error`` goes with the
    finish_reason "error". ``pooled``: what is pooled of the prompt, or of all prompts of a request,
    one after the other: float32 numbers; without tokens.
    """

    index: int
    token_ids: list[int]
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    cached_tokens: int = 0
    queue_seconds: float = 0.0
    draft_tokens: int = 0
    accepted_draft_tokens: int = 0
    logprobs: list[TokenLogprob] | None = None
    prompt_logprobs: list[TokenLogprob | None] | None = None
    error: SequenceError | None = None
    pooled: bytes | None = None


class EngineDeadError(RuntimeError):
    """The engine process ended, fell silent or failed in a step; no request can be served."""


class EngineStartError(RuntimeError):
    """The engine could not start; the message is the engine's own."""


class RequestError(RuntimeError):
    """One request was refused or given up; ``kind`` says why."""

    def __init__(self, kind: FailureKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message


def log_line(record: EngineLog) -> None:
    """Write a line of the engine to this process's log."""
    # Of libraries too, whose loggers nobody has set up in this process.
    name = record.logger if record.logger.startswith("rtp_llm") else "rtp_llm.engine"
    logging.getLogger(name).log(record.level, "%s", record.message)


def describe_memory_error(doing: str) -> str:
    """A MemoryError has no words; `doing`: what was being done, as in "while ..."."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        bound = "the machine or its container has none left; give it more"
    else:
        bound = (
            f"this process may take {limit >> 20} MiB of address space (ulimit -v); raise that, or "
            "lift it: ulimit -v unlimited"
        )
    return f"out of memory while {doing}: {bound}"
