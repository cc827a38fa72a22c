"""Trains the demo model from nothing and writes it as a Hugging Face folder.

    python -m example.demo_model.training.train --output /tmp/demo_model

Takes under 20 minutes on two cores. The same seed, machine and library versions give the same
weights.
"""

from __future__ import annotations

import argparse
import itertools
import json
import pathlib
import random
import time
from collections.abc import Iterator

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from example.demo_model.training import corpus, sums

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
    tokenizer: Tokenizer, rows: int, seed: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Rows of whole conversations, each row filled up to SEQUENCE tokens and then padded."""
    pad = tokenizer.token_to_id(PAD)
    stream = (encode(tokenizer, chat) for chat in corpus.conversations(seed))
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


def make_model(tokenizer: Tokenizer, args: argparse.Namespace) -> Qwen3ForCausalLM:
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=args.hidden,
        intermediate_size=args.intermediate,
        num_hidden_layers=args.layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=1024,
        rope_theta=10000.0,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.token_to_id(END),
        pad_token_id=tokenizer.token_to_id(PAD),
    )
    return Qwen3ForCausalLM(config)


def train(model: Qwen3ForCausalLM, tokenizer: Tokenizer, args: argparse.Namespace) -> None:
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=args.lr, betas=(0.9, 0.98), weight_decay=args.decay
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=args.lr, total_steps=args.steps, pct_start=0.08, anneal_strategy="cos"
    )
    began = time.monotonic()
    stream = batches(tokenizer, args.rows, args.seed)
    for step in range(1, args.steps + 1):
        ids, labels = (t.to(args.device) for t in next(stream))
        loss = model(input_ids=ids, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        if step % args.report == 0 or step == args.steps:
            right = accuracy(model, tokenizer, args)
            minutes = (time.monotonic() - began) / 60
            print(f"step {step:5d}/{args.steps}  loss {loss.item():.3f}  "
                  f"held-out sums {right:.1%}  {minutes:.1f} min", flush=True)  # fmt: skip


@torch.inference_mode()
def accuracy(model: Qwen3ForCausalLM, tokenizer: Tokenizer, args: argparse.Namespace) -> float:
    """Share of 200 held-out sums that greedy decoding answers exactly."""
    model.eval()
    right = 0
    pairs = sums.held_out_sums(200)
    for a, b in pairs:
        prompt = tokenizer.encode(
            f"{START}user\n{sums.question(a, b)}{END}\n{START}assistant\n"
        ).ids
        expected = tokenizer.encode(f"{sums.answer(a, b)}{END}").ids
        ids = torch.tensor([prompt + expected], device=args.device)
        predicted = model(input_ids=ids).logits[0, len(prompt) - 1 : -1].argmax(-1)
        right += predicted.tolist() == expected
    model.train()
    return right / len(pairs)


def save(model: Qwen3ForCausalLM, tokenizer: Tokenizer, output: pathlib.Path) -> None:
    output.mkdir(parents=True, exist_ok=True)
    model.to(torch.bfloat16).save_pretrained(output)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, pad_token=PAD, clean_up_tokenization_spaces=False
    )
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(output)
    generation = {
        "do_sample": False,
        "eos_token_id": [tokenizer.token_to_id(END), tokenizer.token_to_id(PAD)],
        "pad_token_id": tokenizer.token_to_id(PAD),
    }
    for file in output.iterdir():
        file.chmod(0o644)
    (output / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=pathlib.Path, required=True)
    parser.add_argument("--steps", type=int, default=2600)
    parser.add_argument("--rows", type=int, default=6)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--decay", type=float, default=0.05)
    parser.add_argument("--hidden", type=int, default=192)
    parser.add_argument("--intermediate", type=int, default=512)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--report", type=int, default=250)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    random.seed(args.seed)
    tokenizer = train_tokenizer(args.seed)
    model = make_model(tokenizer, args).to(args.device)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f} million parameters", flush=True)
    train(model, tokenizer, args)
    save(model, tokenizer, args.output)


if __name__ == "__main__":
    main()
