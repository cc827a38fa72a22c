# SPDX-License-Identifier: Apache-2.0
"""Plain PyTorch references of the sampling operators."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rtp_llm.ops.sampling.sampling import ALL_BANNED, LEAST_LOGPROB, NOT_FINITE, SAMPLED

_LOW32 = 0xFFFFFFFF


def apply_token_bitmask_reference(logits: Tensor, masks: Tensor, rows: Tensor) -> None:
    """Plain PyTorch reference of `ops.apply_token_bitmask`: same arguments and results."""
    bits = torch.arange(32, dtype=torch.int32, device=masks.device)
    allowed = ((masks[:, :, None] >> bits) & 1).flatten(1)[:, : logits.shape[1]]
    banned, token = (allowed == 0).nonzero(as_tuple=True)
    logits[rows.long()[banned], token] = -torch.inf


def apply_penalties_reference(
    logits: Tensor,
    tokens: Tensor,
    cu_tokens: Tensor,
    output_lens: Tensor,
    repetition: Tensor,
    presence: Tensor,
    frequency: Tensor,
) -> None:
    """Plain PyTorch reference of `ops.apply_penalties`: same arguments and results."""
    row, token, generated = _history(logits, tokens, cu_tokens, output_lens)
    seen = torch.zeros(logits.shape, dtype=torch.bool, device=logits.device)
    seen[row, token] = True
    counts = torch.zeros(logits.shape, dtype=torch.float32, device=logits.device)
    counts.index_put_((row, token), generated.float(), accumulate=True)
    factor = repetition[:, None]
    repeated = torch.where(logits < 0, logits * factor, logits / factor)
    repeated = torch.where(seen, repeated, logits)
    penalised = repeated - presence[:, None] - frequency[:, None] * counts
    logits.copy_(torch.where(counts > 0, penalised, repeated))


def ban_repeated_ngrams_reference(
    logits: Tensor, tokens: Tensor, cu_tokens: Tensor, ngram_size: Tensor
) -> None:
    """Plain PyTorch reference of `ops.ban_repeated_ngrams`: same arguments and results."""
    bounds = cu_tokens.tolist()
    for row, n in enumerate(ngram_size.tolist()):
        history = tokens[bounds[row] : bounds[row + 1]]
        if n < 1 or len(history) < n:
            continue
        windows = history.unfold(0, n, 1)
        same = (windows[:, : n - 1] == history[len(history) - n + 1 :]).all(dim=1)
        banned = windows[same, n - 1].long()
        logits[row, banned[(banned >= 0) & (banned < logits.shape[1])]] = -torch.inf


def add_logit_bias_reference(logits: Tensor, rows: Tensor, ids: Tensor, values: Tensor) -> None:
    """Plain PyTorch reference of `ops.add_logit_bias`: same arguments and results."""
    known = (ids >= 0) & (ids < logits.shape[1])
    logits.index_put_((rows[known].long(), ids[known].long()), values[known], accumulate=True)


def sample_reference(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seeds: Tensor,
    steps: Tensor,
) -> tuple[Tensor, Tensor]:
    """See rtp_llm.ops.sample. Weights are float64."""
    rows = weigh_rows(logits, temperature, top_k, top_p, min_p)
    sampled = torch.where(rows.greedy, rows.best, draw(rows.weights, philox_uniform(seeds, steps)))
    return sampled.int(), rows.status.to(torch.int8)


def draw(weights: Tensor, uniform: Tensor) -> Tensor:
    """Indices int64 [R]: the first at which the sum of ``weights`` float64 [R, V] exceeds
    ``uniform`` [R] of all."""
    cumulative = weights.cumsum(dim=1)
    return (cumulative > uniform[:, None] * cumulative[:, -1:]).int().argmax(dim=1)


class WeighedRows(NamedTuple):
    """Rows of logits: float64 ``weights`` [R, V] of the tokens in relation to the best one, 0 where
    a filter left a token out; that ``best`` one [R]; ``greedy`` [R]: rows that take it; ``status``
    [R]."""

    weights: Tensor
    best: Tensor
    greedy: Tensor
    status: Tensor


def weigh_rows(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor
) -> WeighedRows:
    """What the rows of `sample` are sampled from."""
    finite = logits.isfinite()
    broken = (logits.isnan() | (logits == torch.inf)).any(dim=1)
    status = torch.where(broken, NOT_FINITE, torch.where(finite.any(dim=1), SAMPLED, ALL_BANNED))
    cleaned = torch.where(finite, logits, -torch.inf).double()
    # Without a finite logit nothing may become NaN; the first token is taken.
    cleaned = torch.where(finite.any(dim=1, keepdim=True), cleaned, 0)
    ordered, index = cleaned.sort(dim=1, descending=True, stable=True)
    greedy = ~(temperature > 0) | (top_k == 1) | (status != SAMPLED)
    scale = torch.where(greedy, 1, temperature).double()[:, None]
    weights = torch.exp((ordered - ordered[:, :1]) / scale)
    weights = weights.scatter(1, index, _keep(weights, top_k, top_p, min_p))
    return WeighedRows(weights, index[:, 0], greedy, status)


def top_logprobs_reference(logits: Tensor, tokens: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Plain PyTorch reference of `ops.top_logprobs`: same arguments and results."""
    finite = logits.isfinite()
    cleaned = torch.where(finite, logits, -torch.inf).double()
    logprobs = torch.log_softmax(cleaned, dim=1)
    logprobs = torch.where(finite, logprobs, LEAST_LOGPROB).clamp(min=LEAST_LOGPROB)
    # By logit, not by log-probability: the floor must not make ties.
    ids = cleaned.sort(dim=1, descending=True, stable=True).indices[:, :k]
    known = (tokens >= 0) & (tokens < logits.shape[1])
    chosen = logprobs.gather(1, torch.where(known, tokens, 0).long()[:, None])[:, 0]
    chosen = torch.where(known, chosen, LEAST_LOGPROB)
    return chosen.float(), logprobs.gather(1, ids).float(), ids.int()


def philox_uniform(seeds: Tensor, steps: Tensor) -> Tensor:
    """float64 in [0, 1) with 53 random bits: Philox4x32-10 of int64 seeds (key) and steps."""
    high, low = _philox_words(seeds, steps)
    # The top 53 of 64 bits, in two parts that float64 holds exactly.
    return (high.double() * 2**21 + (low >> 11).double()) * 2.0**-53


def philox_open_uniform(seeds: Tensor, steps: Tensor) -> Tensor:
    """float64 in (0, 1): the middles of 2^52 equal parts."""
    high, low = _philox_words(seeds, steps)
    return (high.double() * 2**20 + (low >> 12).double() + 0.5) * 2.0**-52


def _philox_words(seeds: Tensor, steps: Tensor) -> tuple[Tensor, Tensor]:
    """Two words of 32 random bits each, the more significant one first."""
    zero = torch.zeros_like(steps)
    words = [steps & _LOW32, (steps >> 32) & _LOW32, zero, zero]
    key0, key1 = seeds & _LOW32, (seeds >> 32) & _LOW32
    for _ in range(10):
        high0, low0 = _multiply(0xD2511F53, words[0])
        high1, low1 = _multiply(0xCD9E8D57, words[2])
        words = [high1 ^ words[1] ^ key0, low1, high0 ^ words[3] ^ key1, low0]
        key0 = (key0 + 0x9E3779B9) & _LOW32
        key1 = (key1 + 0xBB67AE85) & _LOW32
    return words[1], words[0]


def _multiply(constant: int, word: Tensor) -> tuple[Tensor, Tensor]:
    """High and low 32 bits of a product of 32-bit numbers; int64 has no room for all of it."""
    low = constant * (word & 0xFFFF)
    high = constant * (word >> 16) + (low >> 16)
    return high >> 16, ((high & 0xFFFF) << 16) | (low & 0xFFFF)


def _keep(weights: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """Sorted weights [R, V] with zeros where a filter left a token out."""
    rank = torch.arange(weights.shape[1], device=weights.device)
    limit = torch.where(top_k > 0, top_k, weights.shape[1])[:, None]
    kept = torch.where(rank < limit, weights, 0)
    cumulative = kept.cumsum(dim=1)
    before = torch.cat([torch.zeros_like(cumulative[:, :1]), cumulative[:, :-1]], dim=1)
    share = top_p.double()[:, None]
    inside = (before < share * cumulative[:, -1:]) | (rank == 0) | ~(share < 1)
    likely = weights >= min_p.double().clamp(max=1)[:, None] * weights[:, :1]
    return torch.where(inside & likely, kept, 0)


def _history(
    logits: Tensor, tokens: Tensor, cu_tokens: Tensor, output_lens: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Of every token of the rows' histories that is in the vocabulary: its row, its id, and
    whether it was generated."""
    ends = cu_tokens.long()[1:]
    lengths = cu_tokens.long().diff()
    row = torch.repeat_interleave(torch.arange(len(lengths), device=tokens.device), lengths)
    token = tokens[: len(row)].long()
    generated = torch.arange(len(row), device=tokens.device) >= (ends - output_lens)[row]
    known = (token >= 0) & (token < logits.shape[1])
    return row[known], token[known], generated[known]
