# SPDX-License-Identifier: Apache-2.0
"""How much memory the KV cache may take: arithmetic over what was set and what was measured."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 2**20
# Memory that is shared with the machine. Left to the operating system, the HTTP process and a
# step's activations:
RESERVED_FREE_SHARE = 0.3
# Without a setting a small model must stay small: the cache follows the weights.
WEIGHTS_MULTIPLE = 4
SMALLEST_AUTOMATIC_BYTES = 64 * MIB
# On a device with its own memory, all of it for this process: never given to the cache.
LEAST_RESERVE_BYTES = 2048 * MIB
LEAST_RESERVE_SHARE = 20  # a twentieth of the device
# What sampling may take for a sequence and an entry of the vocabulary: logits, their sorted copy,
# places and probabilities.
SAMPLER_BYTES = 32
# What the driver keeps for one graph, in addition to the results the graph holds.
GRAPH_BYTES = 4 * MIB


class CacheSizeError(ValueError):
    """The model or its KV cache does not fit; the message names the numbers and the settings."""


@dataclass(frozen=True)
class CacheBudget:
    """``bytes`` for the cache (none unless above 0), and the wording of an error about them."""

    bytes: int
    source: str
    remedy: str


@dataclass(frozen=True)
class MeasuredMemory:
    """Memory of a device that has its own, in bytes, once the weights are loaded.

    ``free`` is measured after everything else that a warm-up took has been given back.
    ``prompt_peak`` and ``decode_peak`` are what the largest prompt step and the largest decode step
    took on top of the weights. Graphs keep as much as the decode step, or as the prompt step for
    ``graph_share`` of its tokens. ``sampler`` is an estimate.
    """

    total: int
    free: int
    prompt_peak: int = 0
    decode_peak: int = 0
    graphs: int = 0  # how many graphs will be captured
    graph_share: float = 0.0  # tokens of the largest graph divided by tokens of the prompt step
    sampler: int = 0

    @property
    def graph_bytes(self) -> int:
        """Bytes that graphs will keep; all of them share the memory of the largest."""
        largest = max(self.decode_peak, int(self.prompt_peak * self.graph_share))
        return largest + self.graphs * GRAPH_BYTES if self.graphs else 0

    @property
    def steps(self) -> int:
        """Measured bytes that steps need in addition to the weights and the cache."""
        return self.graph_bytes + max(self.prompt_peak, self.decode_peak)


def sampler_estimate(max_running: int, vocab_size: int) -> int:
    """The most bytes that sampling for ``max_running`` sequences takes."""
    return max_running * vocab_size * SAMPLER_BYTES


def free_within(share: float | None, free: int, total: int) -> int:
    """How many of the ``free`` bytes may be used so that at most a ``share`` of ``total`` is in
    use; with None, all of them."""
    return free if share is None else max(0, free - total + int(share * total))


def modest_budget(
    kv_cache_mem_mb: int | None, *, free: int, weights: int, one_sequence: int
) -> CacheBudget:
    """The budget in memory shared with the host: a multiple of the weights, or the set size.

    Raises:
        CacheSizeError: the set size is more than is free.
    """
    if kv_cache_mem_mb is not None:
        if kv_cache_mem_mb * MIB > free:
            raise CacheSizeError(
                f"kv_cache_mem_mb={kv_cache_mem_mb} does not fit: {max(0, free) // MIB} MiB of "
                "memory are free after loading the weights: set less, or end other programs"
            )
        return _fixed_budget(kv_cache_mem_mb)
    modest = max(SMALLEST_AUTOMATIC_BYTES, WEIGHTS_MULTIPLE * weights, one_sequence)
    return CacheBudget(
        min(modest, int((1 - RESERVED_FREE_SHARE) * free)),
        f"the free memory ({free // MIB} MiB, {RESERVED_FREE_SHARE:.0%} kept back)",
        "free memory or set kv_cache_mem_mb",
    )


def measured_budget(
    kv_cache_mem_mb: int | None,
    reserve_runtime_mem_mb: int,
    memory: MeasuredMemory,
    share: float | None = None,
) -> CacheBudget:
    """The budget on a device with its own memory: all that is free except a reserve, or the set
    size.

    The reserve is the largest of ``reserve_runtime_mem_mb``, what ``share``
    (gpu_memory_utilization) leaves together with steps, 2 GiB, a twentieth of the device, and what
    steps took when they were measured or may take for sampling, with the graphs.

    Raises:
        CacheSizeError: the set size leaves less than steps need.
    """
    if kv_cache_mem_mb is not None:
        _check_fixed_budget(kv_cache_mem_mb, memory)
        return _fixed_budget(kv_cache_mem_mb)
    least = max(LEAST_RESERVE_BYTES, memory.total // LEAST_RESERVE_SHARE)
    reserve, reason = max(
        (memory.graph_bytes + memory.sampler, "for sampling"),
        (memory.steps, "for steps"),
        (reserve_runtime_mem_mb * MIB, "as reserve_runtime_mem_mb says"),
        (_kept(share, memory), "as gpu_memory_utilization says"),
        (least, "in any case"),
    )
    return CacheBudget(
        memory.free - reserve,
        f"the memory left by the weights ({memory.free // MIB} of {memory.total // MIB} MiB are "
        f"free, {-(-reserve // MIB)} MiB of them are kept {reason})",
        "lower max_batch_tokens_size, max_running_requests or reserve_runtime_mem_mb, raise "
        "gpu_memory_utilization, end other programs on the device",
    )


def _kept(share: float | None, memory: MeasuredMemory) -> int:
    """What a share of the device leaves, and steps take of the share."""
    return 0 if share is None else memory.total - int(share * memory.total) + memory.steps


def _fixed_budget(kv_cache_mem_mb: int) -> CacheBudget:
    return CacheBudget(kv_cache_mem_mb * MIB, f"kv_cache_mem_mb={kv_cache_mem_mb}", "raise it")


def _check_fixed_budget(kv_cache_mem_mb: int, memory: MeasuredMemory) -> None:
    left = max(0, memory.free - memory.steps) // MIB
    if kv_cache_mem_mb > left:
        raise CacheSizeError(
            f"kv_cache_mem_mb={kv_cache_mem_mb} does not fit: {memory.free // MIB} of "
            f"{memory.total // MIB} MiB are free after loading the weights, and steps take "
            f"{-(-memory.steps // MIB)} MiB: set at most {left}, or lower max_batch_tokens_size "
            "or max_running_requests"
        )
