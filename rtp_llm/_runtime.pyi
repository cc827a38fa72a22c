"""The C++ runtime: KV cache blocks, prefix cache, continuous batching; the cache store, transfer.

A step is ``schedule()``, a forward pass over ``batch``, ``commit(tokens)``; with ``overlap`` the
next batch may be scheduled, and its pass begun, before the commit. Arrays are views of the
runtime's memory: no copy, valid until the next ``schedule()`` or ``commit()``. The scheduler's
calls keep the GIL, so any thread may make them, one at a time.
"""

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, ClassVar, Literal, TypeAlias, TypedDict

import numpy as np
from numpy.typing import ArrayLike, NDArray
from typing_extensions import Buffer

from rtp_llm.worker.plan.step_plan import StepPlan

class QueueFullError(RuntimeError):
    """As many sequences run or wait as max_running and max_queued allow together."""

class IntegrityError(RuntimeError):
    """A cache block is lost or wrongly shared: a defect of the runtime."""

class CacheGroup:
    """Layers that share one block table and the rows [first_block, num_blocks) of their caches.

    Row 0 is the padding block. ``window`` counts the tokens that a query sees, itself included. A
    block of a recurrent group is one state of all its layers; a snapshot of it may be kept every
    ``block_size`` tokens.
    """

    def __init__(
        self,
        kind: Literal["full", "sliding_window", "recurrent"],
        num_blocks: int,
        block_size: int,
        window: int = 0,
        first_block: int = 1,
    ) -> None: ...
    @property
    def kind(self) -> Literal["full", "sliding_window", "recurrent"]: ...
    @property
    def num_blocks(self) -> int: ...
    @property
    def block_size(self) -> int: ...
    @property
    def window(self) -> int: ...
    @property
    def first_block(self) -> int: ...

class SchedulerConfig:
    """``max_running`` and ``max_queued`` count sequences.

    Full and sliding-window groups share one block size; recurrent groups share one too, which is a
    multiple of it and at most ``max_batch_tokens``: prompts are cut into chunks that end on it.
    Without groups nothing is kept: all requests are ``prompt_only``, each is computed in one step,
    and ``max_batch_tokens`` is at least ``max_model_len``.
    Every ``recurrent_snapshot_interval`` such blocks of output the prefix cache keeps the state
    (0: those of prompts only).

    One level of priority is worth ``aging_steps`` steps of waiting. ``hash_bits`` below 128 forces
    hash collisions, for tests. With ``overlap`` a batch may be scheduled while the tokens of the
    last one are not known; with ``stages`` of a pipeline as many may be uncommitted, and a sequence
    that samples is in one of them. With ``shared_batch`` other processes can see the batch.
    ``max_draft_tokens`` (0 to 63) are those of one sequence in one step; with ``device_drafts`` the
    device finds those that the host does not know. With ``optimistic_drafts``, and ``overlap``, a
    step is planned as if all drafts in flight were right, and the device corrects it: see
    ``Batch.seq_lens``. With ``mrope`` a batch has offsets of positions on three axes, with
    ``adapters`` each sequence's adapter, with ``token_types`` where the second of its two texts
    begins. ``max_rows`` are those of a batch.
    """

    def __init__(
        self,
        groups: Sequence[CacheGroup],
        *,
        max_running: int = 256,
        max_queued: int = 1024,
        max_batch_tokens: int = 2048,
        max_model_len: int,
        prefix_cache: bool = True,
        recurrent_snapshot_interval: int = 0,
        hash_bits: int = 128,
        aging_steps: int = 256,
        overlap: bool = False,
        shared_batch: bool = False,
        max_draft_tokens: int = 0,
        device_drafts: bool = False,
        optimistic_drafts: bool = False,
        stages: int = 1,
        mrope: bool = False,
        adapters: bool = False,
        token_types: bool = False,
    ) -> None: ...
    @property
    def groups(self) -> list[CacheGroup]: ...
    @property
    def max_running(self) -> int: ...
    @property
    def max_queued(self) -> int: ...
    @property
    def max_batch_tokens(self) -> int: ...
    @property
    def max_model_len(self) -> int: ...
    @property
    def prefix_cache(self) -> bool: ...
    @property
    def recurrent_snapshot_interval(self) -> int: ...
    @property
    def hash_bits(self) -> int: ...
    @property
    def aging_steps(self) -> int: ...
    @property
    def overlap(self) -> bool: ...
    @property
    def shared_batch(self) -> bool: ...
    @property
    def max_draft_tokens(self) -> int: ...
    @property
    def device_drafts(self) -> bool: ...
    @property
    def optimistic_drafts(self) -> bool: ...
    @property
    def stages(self) -> int: ...
    @property
    def mrope(self) -> bool: ...
    @property
    def adapters(self) -> bool: ...
    @property
    def token_types(self) -> bool: ...
    @property
    def max_rows(self) -> int: ...

Drafts: TypeAlias = tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int32]]
"""Speculative tokens: ids [D] of sequences, tokens [D, K], lengths [D] of which count.

They follow the sequence's last token, a pending one included. -1 is a token that the host does not
know: nothing but the device can accept it.
"""

class Batch(StepPlan):
    """A step's input in the scheduler's memory; arrays are views of it."""

class Result:
    """What a commit did: one row per output of the batch, in the same order.

    One whose sequence ended between ``schedule()`` and ``commit()`` has no tokens.
    """

    @property
    def num_rows(self) -> int: ...
    @property
    def ids(self) -> NDArray[np.int64]:
        """[O]."""
    @property
    def tokens(self) -> NDArray[np.int32]:
        """[O, K], the accepted tokens padded with -1; what follows an end is dropped."""
    @property
    def num_tokens(self) -> NDArray[np.int32]:
        """[O]."""
    @property
    def num_drafts(self) -> NDArray[np.int32]:
        """[O], of which num_tokens - 1 were accepted at most."""
    @property
    def finish(self) -> NDArray[np.uint8]:
        """[O], 0 none, 1 end of sequence, 2 stop token, 3 length, 4 NaN or +inf, 5 all -inf."""
    @property
    def cached_tokens(self) -> NDArray[np.int32]:
        """[O], prompt tokens that the prefix cache served."""
    @property
    def queue_seconds(self) -> NDArray[np.float32]:
        """[O], of each sequence the seconds from its arrival to its first admission."""

class GroupStats(TypedDict):
    """Blocks of one group; ``free_blocks`` include cached ones that would be evicted."""

    free_blocks: int
    total_blocks: int
    cached_blocks: int

class SchedulerStats(TypedDict):
    """Counts now, and totals since the start. Blocks are those of all groups together.

    ``running`` includes ``receiving``; ``held`` counts what ``pin`` keeps blocks for.
    """

    running: int
    waiting: int
    receiving: int
    held: int
    free_blocks: int
    total_blocks: int
    cached_blocks: int
    groups: list[GroupStats]
    preemptions: int
    prefix_hit_tokens: int
    prefix_query_tokens: int

class Scheduler:
    """Continuous batching over paged caches.

    Raises:
        ValueError: a configuration that cannot work; names the field.
    """

    def __init__(self, config: SchedulerConfig) -> None: ...
    @property
    def config(self) -> SchedulerConfig: ...
    def add(
        self,
        ids: Sequence[int],
        prompt: ArrayLike,
        *,
        max_tokens: int,
        min_tokens: int = 0,
        eos_token_ids: Sequence[int] = [],
        stop_token_ids: Sequence[int] = [],
        priority: int = 0,
        extra_key: bytes = b"",
        sampling_flags: int = 0,
        needs_history: bool = False,
        use_prefix_cache: bool = True,
        prompt_only: bool = False,
        overlap: bool = True,
        tenant: str = "",
        tenant_weight: float = 1.0,
        spans: Sequence[tuple[int, int, bytes]] = (),
        mrope_offsets: NDArray[np.int32] | None = None,
        mrope_position_delta: int = 0,
        adapter_slot: int = -1,
        second_text: int = 0,
        beam_search: bool = False,
    ) -> list[int]:
        """Add ``len(ids)`` sequences that share ``prompt`` (int32 [P]); their slots.

        A slot is in [0, max_running + max_queued) and the sequence's until it ends. A lower
        ``priority`` goes first; beyond -100 and 100 it counts as these. End and stop ids end a
        sequence once it has ``min_tokens`` tokens, the last one included. ``prompt_only`` (one id):
        no token is sampled, the sequence ends with its prompt, and ``max_tokens`` has no meaning.
        Without ``overlap`` no step is scheduled for the sequences while their last token is
        pending: whoever needs to see it first (a proposer of drafts) can.

        Among waiting requests of one priority those of the ``tenant`` go first that was given the
        fewest tokens over its ``tenant_weight``: one for each prompt token that was computed, two
        for each of output (VTC, OSDI 2024). A named tenant that has more than half of all sequences
        finds the last eighth of the queue closed.

        ``spans`` (offset, length, identifier) of the prompt are placeholders for embeddings, by
        offset; those with equal identifiers are equal. ``mrope_offsets`` int32 [P, 3] are added to
        the prompt's positions for those on each axis, ``mrope_position_delta`` to those of the
        output. Sequences share cached blocks only where these are equal, too. ``adapter_slot``
        names an adapter, -1 none; ``extra_key`` has to say which one it holds. ``second_text``:
        where the second of two texts begins in the prompt, 0: it is one.

        With ``beam_search`` the sequences are beams: the token that one gets in ``commit`` stands
        in for what `reorder` chooses once all of them have one. With ``overlap``, too, a step may
        have all of them before that, with the block tables of their parents; the device orders
        these.

        Raises:
            ValueError: the request makes no sense, or could not fit even alone; says the numbers.
            QueueFullError: no place now.
        """
    def abort(self, ids: Sequence[int], *, not_finite: bool = False) -> int:
        """End sequences in any state; unknown ids are ignored. Returns how many ended.

        ``not_finite``: they gave NaN or infinity, so their blocks leave the prefix cache.
        """
    def fork(self, id: int, ids: Sequence[int], *, last_tokens: Sequence[int] = []) -> list[int]:
        """Add sequences that continue the prompt and output of sequence ``id``; their slots.

        ``last_tokens`` replace the last token of each; stop rules are not applied to them. Full
        blocks of the cache are shared, the last one is copied before it is written. Between commit
        and the next schedule, with a batch in flight too.

        Raises:
            ValueError: the sequence has no output yet, or a token that is not committed.
            QueueFullError: no place now.
        """
    def reorder(
        self,
        ids: NDArray[np.int64],
        parents: NDArray[np.int32],
        last_tokens: NDArray[np.int32],
        widths: Sequence[int],
    ) -> None:
        """The next step of groups of beams, at the same times as `fork`; arrays [N].

        The first ``widths[0]`` beams are a group, and so on. In a group, sequence ``ids[i]``
        continues what ``ids[parents[i]]`` had before its last commit, with ``last_tokens[i]``; full
        blocks of the cache are shared. If a step with these beams is in flight, the device has
        ordered its block tables by the same choice.

        Raises:
            ValueError: these are not beams of one length; the group has not changed, earlier ones
                have.
        """
    def tokens_of(self, id: int) -> tuple[int, int, NDArray[np.int32]]:
        """Slot, prompt length, and prompt with committed output int32 [T], of a sequence.

        Raises:
            ValueError: an unknown id.
        """
    def schedule(self, drafts: Drafts | None = None) -> bool:
        """Fill ``batch``; False if nothing can run now.

        Decoding sequences also compute their drafts, as far as max_tokens, and tokens and blocks
        that nobody else can use, allow. Drafts of other sequences are ignored. Without
        ``optimistic_drafts`` those with drafts sit out the step that overlaps with that one; with
        it only those with ``needs_history`` or with fewer than ``min_tokens`` tokens do, and all
        where snapshots of states are kept.

        Raises:
            ValueError: drafts that make no sense; nothing has changed.
            RuntimeError: the last batch was not committed, with ``overlap`` the last two, with
                ``stages`` as many.
        """
    def commit(self, tokens: NDArray[np.int32]) -> None:
        """Append the tokens [O] or [O, K] (padded with -1) of the oldest batch; fill ``result``.

        Rows of sequences that end with their prompt follow those of the outputs. An output has one
        token, and one more for each draft that equals the token before it. In place of a token, -2
        says that its row's logits have NaN or +inf, and -3 that all are -inf: the sequence ends.
        Whatever was computed of the other drafts is given back.

        Raises:
            ValueError: the shape does not suit, a live output has no token, or one that follows
                another draft than was given; nothing has changed.
        """
    def set_connector(self, matched: Callable[[int, int], int]) -> None:
        """Ask ``matched(id, computed)`` how many tokens after the first ``computed`` ones a KV
        connector will load, whenever a sequence without siblings is about to be admitted; record
        what the prefix cache evicts.

        The answer counts once ``take_receivers`` returns the sequence. ``matched`` is called inside
        ``schedule`` and must not change the scheduler; what it raises, ``schedule`` raises.
        """
    def take_receivers(self) -> list[tuple[int, int, int, int]]:
        """(id, slot, computed, end) of sequences that were given blocks since the last call for
        tokens [computed, end), which a connector loads; the prefix cache served those before. They
        wait for ``finish_load``, ``finish_recv`` or ``recompute``."""
    def take_evicted(
        self,
    ) -> tuple[NDArray[np.uint64], NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]] | None:
        """Blocks that the prefix cache has forgotten since the last call: keys uint64 [N, 2] of all
        tokens up to each block's end, groups [N], blocks [N], tokens [N, block size]. None: none.

        To be taken after each ``schedule``; their content must be copied before its batch is
        executed and before anything is loaded.
        """
    def block_keys(self, id: int) -> NDArray[np.uint64]:
        """Keys uint64 [N, 2] of all full blocks of a live sequence before its last token, as in
        ``take_evicted``. Equal in all processes; not cryptographic. Empty if the sequence does not
        use the prefix cache.

        Raises:
            ValueError: there is no such sequence.
        """
    def finish_load(self, id: int, arrived: int) -> None:
        """The blocks hold the first ``arrived`` tokens: the sequence computes the rest.

        With window or recurrent groups all that was matched must have arrived.

        Raises:
            ValueError: the sequence does not receive, or ``arrived`` is out of range.
        """
    def finish_recv(self, id: int, token: int, *, cached_tokens: int = 0) -> int:
        """The blocks hold all tokens: the sequence runs, and ``token`` is its next one.

        ``cached_tokens`` is what is reported as served by a prefix cache. Returns the finish code
        of ``Result.finish``.

        Raises:
            ValueError: the sequence does not receive, or not all of its tokens.
        """
    def recompute(self, id: int) -> None:
        """Give the blocks back: nothing arrived, and the tokens are computed here, in their turn.
        The connector is not asked about the sequence again.

        Raises:
            ValueError: the sequence does not receive.
        """
    def pin(self, id: int, first: int, end: int) -> tuple[NDArray[np.int32], ...]:
        """Keep entries [first, end) of a sequence's block tables from being given to others.

        Until ``unpin``, whatever becomes of the sequence; more may follow under the same id.
        Returns the blocks, per group, -1 where a window needs none. Of a recurrent group that is
        the state after the prompt, or after what is loaded: one block if the entries (of the other
        groups' block size) include the last one, else none.

        Raises:
            ValueError: there is no such sequence, or it has not so many blocks.
        """
    def unpin(self, id: int) -> bool:
        """The transfer has stopped for certain; False if nothing was held."""
    @property
    def batch(self) -> Batch: ...
    @property
    def result(self) -> Result: ...
    @property
    def shared_memory(self) -> tuple[int, int]:
        """Descriptor and size of the file in memory that the batch's arrays lie in."""
    def shared_offset(self, array: NDArray[Any]) -> int:
        """Where an array of the batch lies in it; -1 for one that has no memory."""
    @property
    def uncommitted(self) -> list[int]:
        """O of each batch that was scheduled and not committed, the oldest first."""
    @property
    def has_work(self) -> bool:
        """Some sequence is waiting or running."""
    def stats(self) -> SchedulerStats:
        """``free_blocks`` include cached ones that would be evicted for a request."""
    def check_integrity(self) -> None:
        """Check every block and sequence; slow, for tests.

        Raises:
            IntegrityError: something is lost or wrongly shared.
        """

class LifeCycleError(RuntimeError):
    """The life cycle of a CacheStoreAsyncWriter does not allow this call now; says why."""

class WriterQueueFullError(RuntimeError):
    """No room in the writer's queue, within the time that its settings allow."""

class TasksDroppedError(RuntimeError):
    """Tasks of a cycle never ran: the writer was shut down before their turn."""

class StepChannel:
    """Hands steps over to workers in other processes through shared memory.

    A step is ``publish``, every worker's ``await_step``, ``take`` once the batch's arrays may
    change and ``finish`` once its answer can be read. Steps are counted from 1 up, modulo 2^32; a
    worker has taken and finished step 0 when it begins. Waiting looks at a counter for
    ``spin_microseconds``, then sleeps; the GIL is free meanwhile.
    """

    bytes: ClassVar[int]
    """Size of ``memory``, which starts as zeros and is shared by all processes."""

    def __init__(self, memory: Buffer, num_workers: int, spin_microseconds: int) -> None: ...
    def publish(self, batch: Batch | None) -> None:
        """The numbers of a batch that are no arrays: see ``numbers``. None: a step without."""
    def publish_numbers(self, numbers: Sequence[int]) -> None:
        """The same of a batch that another machine has: its ``numbers``, at most 64."""
    @property
    def published(self) -> int:
        """The newest step."""
    def numbers(self, count: int) -> list[int]:
        """The first ``count`` of the plan's numbers in the order of their declaration, then of each
        cache group the width of its block_table and the number of its copy_pairs."""
    def await_taken(self, step: int, seconds: float) -> bool:
        """Until all workers have taken the step; False when the seconds pass first."""
    def await_finished(self, step: int, seconds: float) -> bool:
        """Until all workers have finished the step; False when the seconds pass first."""
    def await_step(self, last: int, seconds: float) -> int:
        """Until a step after ``last`` is published: the newest; ``last`` when the seconds pass."""
    def take(self, worker: int, step: int) -> None: ...
    def finish(self, worker: int, step: int) -> None: ...

class CacheStoreAsyncWriter:
    """Runs the writing of a step's cache blocks on threads of its own.

    A cycle is ``init()``, any number of ``submit()``, ``wait_all_done()``; the next one may begin
    after it, also after a failure. Any thread may submit, a task itself may not. Tasks run in any
    order unless there is one thread. Threads start with the first cycle. Nothing waits with the
    interpreter's lock. A writer that is dropped, or left when the program ends, drops its queue.

    Args:
        num_threads: each is busy while its task waits for the device and for the store.
        queue_size: tasks that wait for a thread.
        when_full: whether ``submit`` then waits for room or raises at once.
        submit_timeout: seconds that it waits, at most 24 hours.
        before_task: runs on the worker before each task; sets the thread's device.

    Raises:
        ValueError: an argument is out of range.
    """

    def __init__(
        self,
        *,
        num_threads: int = 4,
        queue_size: int = 10000,
        when_full: Literal["block", "raise"] = "block",
        submit_timeout: float = 5.0,
        before_task: Callable[[], object] | None = None,
    ) -> None: ...
    def init(self) -> None:
        """Open a cycle.

        Raises:
            LifeCycleError: one is open, or the writer was shut down.
        """
    def submit(self, task: Callable[[], object], ready: Callable[[], object] | None = None) -> None:
        """Queue ``task``; a worker calls ``ready`` (an event's ``synchronize``), then the task.

        When ``ready`` raises, the task has failed and does not run.

        Raises:
            LifeCycleError: no cycle is open, its wait has begun, or the writer was shut down.
            WriterQueueFullError: no room; the cycle goes on without the task.
        """
    def wait_all_done(self) -> None:
        """Wait until every task has ended and its captures are gone, then close the cycle.

        Raises:
            LifeCycleError: no cycle is open, or another thread waits for it.
            TasksDroppedError: a shutdown dropped some of the tasks, and none had failed before.
            BaseException: what the first task that failed raised.
        """
    def cycle(self) -> AsyncWriterCycle:
        """``init`` and ``wait_all_done`` as a ``with`` block.

        An exception that leaves the block is not replaced by that of a task.
        """
    def shutdown(self, *, drain: bool) -> None:
        """End the writer once running tasks have ended; queued ones run (``drain``) or are dropped.

        May be called again: ``drain=False`` cuts a draining shutdown short.

        Raises:
            LifeCycleError: called by a task.
        """
    @property
    def pending(self) -> int:
        """Tasks of the cycle that have not ended, queued ones included."""
    @property
    def queued(self) -> int:
        """Tasks that no worker has taken yet."""
    @property
    def cycle_open(self) -> bool: ...

class AsyncWriterCycle:
    """What ``CacheStoreAsyncWriter.cycle()`` returns."""

    def __enter__(self) -> None: ...
    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

BlockArray: TypeAlias = NDArray[np.int64]
"""[N, 7], one row a block: plane, position, key, address, rows, row_bytes, row_stride.

Contiguous, row by row. ``plane`` tells keys from values and from their scales, as the caller likes;
``position`` counts blocks from the start of the sequence; ``key`` is the block's hash. Two sides
mean the same block when all three are equal. Its memory is ``rows`` pieces of ``row_bytes``, the
first one at ``address`` (of the host), each ``row_stride`` bytes after the last.
"""

class StoreStats(TypedDict):
    """Counts now up to ``releasing``, totals since the start after it."""

    requests: int
    blocks: int
    bytes: int
    waiting_loads: int
    waiting_blocks: int
    sending: int
    releasing: int
    stored_blocks: int
    stored_bytes: int
    answered_loads: int
    failed_loads: int
    ended: int
    expired: int
    dropped_stores: int

class CacheStore:
    """Where prefill keeps account of the blocks that it has computed, until a request ends.

    Nothing is copied. Any thread may call; no call waits.

    Args:
        expiry: seconds after which a request to which nothing was added has ended.
        max_waiting_blocks: of all loads that wait together; one beyond it fails with "queue_full".

    Raises:
        ValueError: an argument is out of range.
    """

    def __init__(self, *, expiry: float = 600.0, max_waiting_blocks: int = 1 << 20) -> None: ...
    def store(
        self, request: str, layer: int, blocks: BlockArray, owner: object | None = None
    ) -> bool:
        """Add blocks of a layer; False when the request has ended, and nothing was kept.

        Their memory must stay as it is until the request was released. ``owner`` is kept until
        then; without one the memory belongs to a pool.

        Raises:
            ValueError: ``blocks`` make no sense.
        """
    def end(self, request: str) -> None:
        """Forget a request: loads of it fail with "request_ended", later stores are dropped."""
    def take_released(self) -> list[str]:
        """Requests that ended and whose memory nothing reads any more, each of them once."""
    def busy(self, request: str) -> bool:
        """Whether the request has blocks here, or has ended and is still read."""
    def expire(self) -> None:
        """End requests whose time is over, as a server does every second."""
    def fileno(self) -> int:
        """Readable when ``take_released`` has something to give."""
    def stats(self) -> StoreStats: ...

class ServerStats(TypedDict):
    """Counts since the start, but for ``connections``."""

    connections: int
    accepted: int
    refused: int
    evicted: int
    unauthorized: int
    mismatches: int
    protocol_errors: int
    stalled: int
    loads: int
    timeouts: int
    cancelled: int
    bytes: int

class TransferServer:
    """Sends the blocks of a store to the decode workers that ask for them.

    It trusts who proves the key; without one, who can connect and knows the fingerprint.

    Args:
        address: "host:port", or "[host]:port"; port 0 lets the system choose.
        fingerprint: of the model and of how its cache lies in memory, 1 to 4096 bytes. A peer that
            has another one is refused, and told both.
        max_connections: beyond them a new one takes the place of the oldest that has not been
            admitted after ``handshake_grace`` seconds, or is refused.
        send_stall: seconds after which a peer that takes nothing is cut off.
        key: secret that peers must prove to have, without sending it; empty: none.
        handshake_timeout: seconds until a peer must have ended its handshake.

    Raises:
        ValueError: an argument is out of range.
        RuntimeError: the address cannot be listened to.
    """

    def __init__(
        self,
        store: CacheStore,
        address: str = "127.0.0.1:0",
        *,
        fingerprint: str,
        io_threads: int = 2,
        max_connections: int = 256,
        send_stall: float = 5.0,
        key: bytes = b"",
        handshake_grace: float = 1.0,
        handshake_timeout: float = 5.0,
    ) -> None: ...
    @property
    def address(self) -> str:
        """With the port that the system chose."""
    def close(self) -> None:
        """Cut all connections; the store stays."""
    def stats(self) -> ServerStats: ...

TransferCode: TypeAlias = Literal[
    "none",
    "invalid_params",
    "queue_full",
    "connect_failed",
    "send_failed",
    "prefill_timeout",
    "buffer_timeout",
    "store_failed",
    "unknown",
    "mismatch",
    "checksum",
    "request_ended",
    "cancelled",
    "peer_lost",
    "unauthorized",
]
"""``prefill_timeout``: no answer in time. ``buffer_timeout``: the answer, that a block was not
stored in time. ``peer_lost``: the connection was cut."""

class TransferError(RuntimeError):
    """A connection that could not be made; says the addresses, the time and the reason."""

    code: TransferCode

class Load:
    """Blocks that come from one prefill worker. Any thread may call."""

    def poll(self) -> list[int]:
        """Layers whose blocks have all arrived since the last call."""
    @property
    def done(self) -> bool:
        """All has arrived, or it failed: nothing writes to the blocks any more."""
    @property
    def code(self) -> TransferCode:
        """Why it failed; "none" while it goes on, and when all has arrived."""
    @property
    def message(self) -> str:
        """Of a failure: both addresses, the time it took, the code and what is known."""
    @property
    def elapsed(self) -> float:
        """Seconds, until it was done."""
    @property
    def request(self) -> str: ...
    @property
    def address(self) -> str:
        """Of the prefill worker, as it was given."""
    def cancel(self) -> None:
        """Fail the load if it goes on; returns at once. The blocks are free once it is done."""
    def wait(self, timeout: float) -> bool:
        """Wait until it is done, at most ``timeout`` seconds; whether it is."""

class ClientStats(TypedDict):
    """Counts now up to ``outstanding`` (parts of loads), totals since the start after it."""

    loads: int
    connections: int
    outstanding: int
    completed: int
    bytes: int
    discarded_bytes: int
    connects: int
    failures: dict[str, int]

class TransferClient:
    """Loads blocks from prefill workers into memory of this process.

    Args:
        fingerprint: as the servers'.
        connections: to each prefill worker; they are made when there is something to load.
        checksums: whether the blocks' bytes have a checksum; all else always has.
        connect_timeout: seconds.
        max_loads: at a time; one beyond them fails with "queue_full".
        key: as the servers'.

    Raises:
        ValueError: an argument is out of range.
    """

    def __init__(
        self,
        *,
        fingerprint: str,
        connections: int = 2,
        io_threads: int = 2,
        checksums: bool = True,
        connect_timeout: float = 1.0,
        max_loads: int = 1024,
        key: bytes = b"",
    ) -> None: ...
    def load(
        self,
        address: str,
        request: str,
        layers: Sequence[tuple[int, BlockArray]],
        *,
        timeout: float,
        partition: tuple[int, int] = (1, 0),
    ) -> Load:
        """Begin to load blocks, layer by layer, to the addresses in ``layers``.

        It may begin before prefill has stored anything, and fails after ``timeout`` seconds.
        ``partition`` (count, index) takes slice ``index`` of ``count`` equal ones of every stored
        row. What fails, connecting included, is the result of the load.

        Raises:
            ValueError: the arguments make no sense.
            RuntimeError: the client is closed.
        """
    def connect(self, address: str, *, timeout: float = 5.0) -> None:
        """Connect now, and check that the two sides suit.

        Raises:
            TransferError: they do not, or nobody is there.
        """
    def fileno(self) -> int:
        """Readable once some load made progress, until ``clear``."""
    def clear(self) -> None: ...
    def close(self) -> None:
        """Cancel all loads and wait until nothing writes to their blocks."""
    def stats(self) -> ClientStats: ...

class NgramProposer:
    """Drafts: what followed the last tokens of a sequence where they occurred before.

    Of the n-grams of ``min_n`` to ``max_n`` tokens that a sequence ends on, the longest that occurs
    earlier in its prompt or output, there the first. Not thread-safe.

    Raises:
        ValueError: n-grams or drafts of no tokens.
    """

    def __init__(self, *, min_n: int, max_n: int, num_tokens: int) -> None: ...
    def add(self, ids: Sequence[int], prompt: NDArray[np.int32]) -> None:
        """Sequences of one prompt."""
    def fork(self, source: int, id: int, tokens: NDArray[np.int32]) -> None:
        """Sequence ``id`` continues the ``tokens`` of ``source``; ignored if that is unknown."""
    def end(self, ids: Sequence[int]) -> None:
        """Forget sequences; unknown ones are ignored."""
    def observe(self, result: Result) -> None:
        """A step was committed; sequences that ended are forgotten."""
    def receive(self, id: int, token: int, *, ended: bool) -> None:
        """As `observe` for one sequence, whose next token comes from elsewhere."""
    def propose(self) -> Drafts | None:
        """``num_tokens`` drafts for each sequence that has some, for ``Scheduler.schedule``."""
    @property
    def num_sequences(self) -> int: ...

class SuffixProposer:
    """Drafts: what most often followed the last tokens of a sequence, in its prompt and output and
    in the outputs of others of its scope (SuffixDecoding).

    The arguments are as vLLM's settings suffix_decoding_*; ``max_cached_requests`` 0 leaves the
    outputs of others out. Not thread-safe.

    Raises:
        ValueError: numbers that make no sense.
    """

    def __init__(
        self,
        *,
        num_tokens: int,
        max_tree_depth: int,
        max_cached_requests: int,
        max_spec_factor: float,
        min_token_prob: float,
    ) -> None: ...
    def add(self, ids: Sequence[int], prompt: NDArray[np.int32], scope: bytes = b"") -> None:
        """Sequences of one prompt. Outputs are looked at only within a ``scope``."""
    def fork(self, source: int, id: int, tokens: NDArray[np.int32]) -> None:
        """Sequence ``id`` continues the ``tokens`` of ``source``; ignored if that is unknown."""
    def end(self, ids: Sequence[int]) -> None:
        """Forget sequences, but not what they said; unknown ones are ignored."""
    def observe(self, result: Result) -> None:
        """A step was committed; of sequences that ended only the output is kept."""
    def receive(self, id: int, token: int, *, ended: bool) -> None:
        """As `observe` for one sequence, whose next token comes from elsewhere."""
    def propose(self) -> Drafts | None:
        """Up to ``num_tokens`` drafts for each sequence that has some, for ``Scheduler.schedule``.

        Long prompts are taken in over several calls.
        """
    @property
    def num_sequences(self) -> int: ...
    @property
    def num_cached(self) -> int:
        """Outputs that are kept for other sequences."""

def choose_continuations(
    parents: NDArray[np.int32],
    tokens: NDArray[np.int32],
    totals: NDArray[np.float32],
    logprobs: NDArray[np.float32],
    steps: Sequence[tuple[int, int, int, bool]],
    stop_ids: NDArray[np.int32],
    texts: NDArray[np.bool_] | None = None,
) -> tuple[
    NDArray[np.int32],
    NDArray[np.int32],
    NDArray[np.float32],
    NDArray[np.float32],
    list[int],
    list[tuple[int, int, int, float, float, bool]],
]:
    """The step of groups of beams, from candidates [R, k] as `select_beams` returns them.

    A group is a tuple of ``steps``: the row of its candidates, its width, its number of beams after
    this step, and whether all of its sequences end with it. They also end with one of ``stop_ids``
    [G, N], and with the candidates that ``texts`` [G, k] marks. The best ones that do not end go
    on.

    Returns parents, tokens, log-probabilities and sums of all beams [sum of widths], the number of
    beams of each group that go on (the others are copies of the last one, with a sum of -inf), and
    what ends: group, parent, token, sum, log-probability, and whether it is stopped by its token.

    Raises:
        ValueError: sizes that do not fit together.
    """
