# SPDX-License-Identifier: Apache-2.0
"""The tokenizer, and rows of token ids and labels for training."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from example.demo_model.training import calculator, corpus, facts, sums

VOCABULARY = 1024
SEQUENCE = 256
START, END, PAD = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)
Batch = tuple[torch.Tensor, torch.Tensor]
"""Token ids and labels, both [rows, tokens]."""
IGNORED = -100
"""The label that the loss ignores: the user's words are not to be learnt."""


def train_tokenizer(seed: int) -> Tokenizer:
    """A byte-level BPE whose numbers fall into single digits."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[PAD, START, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    chats = itertools.islice(corpus.conversations(seed), 6000)
    texts = (text for chat in chats for turn in chat.turns for text in ("user", "assistant", *turn))
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def encode(tokenizer: Tokenizer, chat: corpus.Chat) -> tuple[list[int], list[int]]:
    """Token ids of a conversation and its labels: only the assistant's words count."""
    ids: list[int] = tokenizer.encode(_opening(chat.system)).ids
    labels: list[int] = [IGNORED] * len(ids)
    for question, answered in chat.turns:
        prompt = tokenizer.encode(_question(question)).ids
        reply = tokenizer.encode(f"{answered}{END}").ids
        newline = tokenizer.encode("\n").ids
        ids += prompt + reply + newline
        labels += [IGNORED] * len(prompt) + reply + [IGNORED] * len(newline)
    return ids, labels


def _opening(system: str) -> str:
    return f"{START}system\n{system}{END}\n" if system else ""


def _question(question: str) -> str:
    return f"{START}user\n{question}{END}\n{START}assistant\n"


def batches(
    tokenizer: Tokenizer, chats: Iterator[corpus.Chat], rows: int, length: int = SEQUENCE
) -> Iterator[Batch]:
    """Rows of whole conversations, each row filled up to `length` tokens and then padded."""
    pad = tokenizer.token_to_id(PAD)
    stream = (encode(tokenizer, chat) for chat in chats)
    ids, labels = next(stream)
    while True:
        batch_ids, batch_labels = [], []
        for _ in range(rows):
            row_ids: list[int] = []
            row_labels: list[int] = []
            while len(row_ids) + len(ids) <= length:
                row_ids += ids
                row_labels += labels
                ids, labels = next(stream)
            if not row_ids:  # one conversation longer than a row
                row_ids, row_labels = ids[:length], labels[:length]
                ids, labels = next(stream)
            padding = length - len(row_ids)
            batch_ids.append(row_ids + [pad] * padding)
            batch_labels.append(row_labels + [IGNORED] * padding)
        yield torch.tensor(batch_ids), torch.tensor(batch_labels)


def merge_batches(one: Iterator[Batch], other: Iterator[Batch]) -> Iterator[Batch]:
    """Yield batches with the rows of both: a row without tools never follows one with tools."""
    for (ids, labels), (more_ids, more_labels) in zip(one, other, strict=True):
        yield torch.cat([ids, more_ids]), torch.cat([labels, more_labels])


def prompt_ids(tokenizer: Tokenizer, question: str, system: str = "") -> list[int]:
    """Token ids of a conversation that waits for the answer to `question`."""
    ids: list[int] = tokenizer.encode(_opening(system) + _question(question)).ids
    return ids


def case_prompts(
    tokenizer: Tokenizer, system: str, case: calculator.Case
) -> tuple[list[int], list[int]]:
    """Token ids of a conversation that waits for the call, and of it when the tool has said."""
    (question, called), (said, _) = case.turns
    asking = prompt_ids(tokenizer, question, system)
    call = tokenizer.encode(f"{called}{END}\n").ids
    return asking, [*asking, *call, *prompt_ids(tokenizer, said)]


def held_out_prompts(tokenizer: Tokenizer) -> dict[str, list[list[int]]]:
    """Return the prompts for measuring drafts: held-out sums, all facts, and tool calls."""
    pairs, cases = sums.held_out_sums(200), calculator.held_out_cases(200)
    return {
        "sums": [prompt_ids(tokenizer, sums.question(a, b)) for a, b in pairs],
        "facts": [prompt_ids(tokenizer, question) for question, _ in facts.TURNS],
        "calls": [case_prompts(tokenizer, system, case)[0] for system, case in cases],
    }


def padded(rows: Sequence[Sequence[int]], fill: int) -> torch.Tensor:
    """Token ids [rows, longest], filled up on the right."""
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[fill] * (longest - len(row))] for row in rows])
