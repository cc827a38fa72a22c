"""The tokenizer, and rows of token ids and labels for training."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from example.demo_model.training import corpus, facts, sums

VOCABULARY = 1024
SEQUENCE = 256
START, END, PAD = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)
IGNORED = -100
"""The label that the loss skips: what the user says is not to be learnt."""


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
    texts = (text for chat in chats for turn in chat for text in ("user", "assistant", *turn))
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def encode(tokenizer: Tokenizer, chat: list[corpus.Turn]) -> tuple[list[int], list[int]]:
    """Token ids of a conversation and its labels: only the assistant's words count."""
    ids: list[int] = []
    labels: list[int] = []
    for asked, answered in chat:
        prompt = tokenizer.encode(f"{START}user\n{asked}{END}\n{START}assistant\n").ids
        reply = tokenizer.encode(f"{answered}{END}").ids
        newline = tokenizer.encode("\n").ids
        ids += prompt + reply + newline
        labels += [IGNORED] * len(prompt) + reply + [IGNORED] * len(newline)
    return ids, labels


def batches(
    tokenizer: Tokenizer, rows: int, seed: int, mixture: corpus.Mixture = corpus.USUAL
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Rows of whole conversations, each row filled up to SEQUENCE tokens and then padded."""
    pad = tokenizer.token_to_id(PAD)
    stream = (encode(tokenizer, chat) for chat in corpus.conversations(seed, mixture))
    ids, labels = next(stream)
    while True:
        batch_ids, batch_labels = [], []
        for _ in range(rows):
            row_ids: list[int] = []
            row_labels: list[int] = []
            while len(row_ids) + len(ids) <= SEQUENCE:
                row_ids += ids
                row_labels += labels
                ids, labels = next(stream)
            if not row_ids:  # one conversation longer than a row
                row_ids, row_labels = ids[:SEQUENCE], labels[:SEQUENCE]
                ids, labels = next(stream)
            padding = SEQUENCE - len(row_ids)
            batch_ids.append(row_ids + [pad] * padding)
            batch_labels.append(row_labels + [IGNORED] * padding)
        yield torch.tensor(batch_ids), torch.tensor(batch_labels)


def prompt_ids(tokenizer: Tokenizer, asked: str) -> list[int]:
    """Token ids of a conversation that waits for the answer to `asked`."""
    ids: list[int] = tokenizer.encode(f"{START}user\n{asked}{END}\n{START}assistant\n").ids
    return ids


def held_out_questions() -> dict[str, list[str]]:
    """What drafts are measured on: sums that training never shows, and every fact."""
    pairs = sums.held_out_sums(200)
    return {
        "sums": [sums.question(a, b) for a, b in pairs],
        "facts": [asked for asked, _ in facts.TURNS],
    }


def padded(rows: Sequence[Sequence[int]], fill: int) -> torch.Tensor:
    """Token ids [rows, longest], filled up on the right."""
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[fill] * (longest - len(row))] for row in rows])
