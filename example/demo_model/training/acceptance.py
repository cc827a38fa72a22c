# SPDX-License-Identifier: Apache-2.0
"""How many tokens a step of greedy speculative decoding would give, without an engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from tokenizers import Tokenizer
from torch import Tensor
from transformers import PreTrainedModel

from example.demo_model.training import data
from example.demo_model.training.chain import STEPS, DraftHead, draft_logits

States = Callable[[PreTrainedModel, Tensor], tuple[Tensor, Tensor]]
"""From the target and ids [B, T] to the hidden states that its head takes, and the logits."""
_LONGEST_REPLY = 128


@torch.inference_mode()
def acceptance_length(
    target: PreTrainedModel,
    head: DraftHead,
    states: States,
    tokenizer: Tokenizer,
    prompts: Sequence[list[int]],
    steps: int = STEPS,
) -> float:
    """Mean of 1 + accepted drafts over all verify steps of the replies to `prompts`.

    Greedy verification keeps the target's own greedy text, so its tokens decide which drafts are
    accepted. Tokens past the end of a reply do not count.
    """
    texts = _greedy_texts(target, tokenizer, prompts)
    ids = data.padded(texts, tokenizer.token_to_id(data.PAD))
    hidden, _ = states(target, ids)
    logits = draft_logits(head, ids, hidden, steps)
    drafts = [head.draft_ids[scores.argmax(-1)].tolist() for scores in logits]
    lengths = [
        length
        for row, (prompt, text) in enumerate(zip(prompts, texts, strict=True))
        for length in step_lengths(text, len(prompt), [of_step[row] for of_step in drafts])
    ]
    return sum(lengths) / len(lengths)


def step_lengths(
    text: Sequence[int], prompt_size: int, drafts: Sequence[Sequence[int]]
) -> list[int]:
    """Tokens of each verify step after the prefill gave the first token of the reply.

    `drafts[j][p]` is the head's guess of `text[p + 2 + j]` when it knows `text[: p + 2]`.
    """
    lengths, known, last = [], prompt_size, len(text) - 1
    while known < last:
        accepted = 0
        left = min(len(drafts), last - known)
        while accepted < left and drafts[accepted][known - 1] == text[known + 1 + accepted]:
            accepted += 1
        lengths.append(min(accepted + 1, last - known))
        known += lengths[-1]
    return lengths


def _greedy_texts(
    target: PreTrainedModel, tokenizer: Tokenizer, prompts: Sequence[list[int]]
) -> list[list[int]]:
    """Each prompt with the target's reply, up to the end token."""
    end, pad = tokenizer.token_to_id(data.END), tokenizer.token_to_id(data.PAD)
    longest = max(map(len, prompts))
    padding = [longest - len(prompt) for prompt in prompts]
    rows = [[pad] * before + prompt for before, prompt in zip(padding, prompts, strict=True)]
    texts = target.generate(
        torch.tensor(rows),
        attention_mask=(torch.arange(longest) >= torch.tensor(padding)[:, None]).long(),
        do_sample=False,
        max_new_tokens=_LONGEST_REPLY,
        eos_token_id=end,
        pad_token_id=pad,
    )
    return [
        _until(end, len(prompt), text[before:])
        for before, prompt, text in zip(padding, prompts, texts.tolist(), strict=True)
    ]


def _until(end: int, start: int, text: list[int]) -> list[int]:
    """`text` up to the first `end` from `start` on."""
    return text[: text.index(end, start) + 1] if end in text[start:] else text
