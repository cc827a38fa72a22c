# SPDX-License-Identifier: Apache-2.0
"""Trains the demo models and their draft heads from nothing, as Hugging Face folders.

    python -m example.demo_model.training.train model  --output /tmp/demo_base
    python -m example.demo_model.training.train tools  --output /tmp/demo_model \\
        --target /tmp/demo_base
    python -m example.demo_model.training.train head   --output /tmp/demo_draft_head \\
        --target /tmp/demo_model
    python -m example.demo_model.training.train hybrid --output /tmp/demo_hybrid_model \\
        --target /tmp/demo_base

`tools` goes on with the weights of `model`, and `head` is the EAGLE-3 head of what comes out;
`hybrid` begins with the weights of `model` where their layers agree, and has its MTP layer in its
own folder. On two idle cores model, tools and head together take under 30 minutes, hybrid under an
hour. An interrupted run continues from OUTPUT.training when it is started again. The same seed,
machine and library versions give the same weights, interrupted or not.
"""

from __future__ import annotations

import argparse
import json
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from tokenizers import Tokenizer
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast, Qwen3ForCausalLM

from example.demo_model.training import calculator, corpus, data, eagle3, mtp
from example.demo_model.training.acceptance import States, acceptance_length
from example.demo_model.training.chain import DraftHead, chain_loss
from example.demo_model.training.loop import Fit, Recipe
from example.demo_model.training.models import (
    DenseShape,
    HybridShape,
    accuracy,
    make_dense,
    make_hybrid,
    start_from_dense,
    tool_accuracy,
)

RECIPES = {
    "model": Recipe(steps=2600, rows=6, lr=2e-3),
    "tools": Recipe(steps=600, rows=1, lr=1e-3, mixture=corpus.WITH_JSON, tool_rows=2, length=512),
    "copying": Recipe(
        steps=300, rows=1, lr=1e-3, mixture=corpus.WITH_JSON, tool_rows=2, length=320, wrong=0.7
    ),
    "settling": Recipe(
        steps=350, rows=1, lr=8e-4, mixture=corpus.MORE_JSON, tool_rows=2, length=512, wrong=0.4
    ),
    "head": Recipe(steps=1000, rows=2, lr=2e-3, mixture=corpus.WITH_JSON, tool_rows=1, length=320),
    "hybrid": Recipe(steps=400, rows=4, lr=1e-3, schedule="trapezoid", mixture=corpus.MOSTLY_SUMS),
    "mtp": Recipe(steps=200, rows=4, lr=2e-3),
}
_TOKENIZER = "tokenizer.json"


def train_model(
    model: PreTrainedModel, tokenizer: Tokenizer, recipe: Recipe, state: pathlib.Path
) -> None:
    """Next-token training of all weights; `state` is the checkpoint to continue from."""

    def loss_of(ids: Tensor, labels: Tensor) -> Tensor:
        loss: Tensor = model(input_ids=ids, labels=labels).loss
        return loss

    def report() -> str:
        said = f"held-out sums {accuracy(model, tokenizer):.1%}"
        if not recipe.tool_rows:
            return said
        calls, answers = tool_accuracy(model, tokenizer, 200)
        return f"{said}, held-out calls {calls:.1%}, answers after them {answers:.1%}"

    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f} million parameters", flush=True)
    stream = stream_of(tokenizer, recipe)
    Fit(model.train(), recipe, state).run(stream, loss_of, report)
    model.eval()


def stream_of(tokenizer: Tokenizer, recipe: Recipe) -> Iterator[data.Batch]:
    """Return the training batches of a part, from its first step on."""
    chats = corpus.conversations(recipe.seed, recipe.mixture)
    stream = data.batches(tokenizer, chats, recipe.rows, recipe.length)
    if not recipe.tool_rows:
        return stream
    with_tools = calculator.conversations(recipe.seed, recipe.wrong)
    return data.merge_batches(
        stream, data.batches(tokenizer, with_tools, recipe.tool_rows, recipe.length)
    )


def train_head(
    target: PreTrainedModel,
    head: eagle3.Eagle3Head | mtp.MtpLayer,
    states: States,
    tokenizer: Tokenizer,
    recipe: Recipe,
    state: pathlib.Path,
    prompts: Mapping[str, Sequence[list[int]]],
    stop_at: int | None = None,
) -> None:
    """Chains of drafts from the frozen target's hidden states of the same texts.

    Acceptance is reported for each kind of `prompts`; `stop_at` is for Fit.run.
    """

    def loss_of(ids: Tensor, labels: Tensor) -> Tensor:
        hidden, logits = states(target, ids)
        return chain_loss(head, ids, hidden, logits, labels != data.IGNORED)

    def report() -> str:
        head.eval()
        measured = measure(target, head, states, tokenizer, prompts)
        head.train()
        return measured

    stream = stream_of(tokenizer, recipe)
    Fit(head.train(), recipe, state).run(stream, loss_of, report, stop_at)
    head.eval()


def measure(
    target: PreTrainedModel,
    head: DraftHead,
    states: States,
    tokenizer: Tokenizer,
    prompts: Mapping[str, Sequence[list[int]]],
) -> str:
    """The mean acceptance length of each kind of `prompts`, in words."""
    lengths = {
        kind: acceptance_length(target, head, states, tokenizer, question)
        for kind, question in prompts.items()
    }
    return "acceptance " + ", ".join(f"{kind} {value:.2f}" for kind, value in lengths.items())


def save_tokenizer(
    tokenizer: Tokenizer, output: pathlib.Path, template: str = data.CHAT_TEMPLATE
) -> None:
    """Tokenizer, chat template and generation settings."""
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=data.END,
        pad_token=data.PAD,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = template
    fast.save_pretrained(output)
    generation = {
        "do_sample": False,
        "eos_token_id": [tokenizer.token_to_id(data.END), tokenizer.token_to_id(data.PAD)],
        "pad_token_id": tokenizer.token_to_id(data.PAD),
    }
    for file in output.iterdir():
        file.chmod(0o644)
    (output / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")


def round_weights(model: torch.nn.Module) -> None:
    """Round weights to bfloat16: a head learns from the states that the stored weights give."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.bfloat16())


def run_model(args: argparse.Namespace, state: pathlib.Path) -> None:
    tokenizer = data.train_tokenizer(args.seed)
    model = make_dense(tokenizer, DenseShape())
    train_model(model, tokenizer, recipe_of("model", args), state / "model.pt")
    model.to(torch.bfloat16).save_pretrained(args.output)
    save_tokenizer(tokenizer, args.output)


def run_tools(args: argparse.Namespace, state: pathlib.Path) -> None:
    """The model of `model`, which learns to call a tool, to pass on whatever it says, and both."""
    tokenizer = Tokenizer.from_file(str(args.target / _TOKENIZER))
    model = Qwen3ForCausalLM.from_pretrained(args.target, dtype=torch.float32)
    for number, part in enumerate(("tools", "copying", "settling")):
        recipe = replace(recipe_of(part, args), seed=args.seed + number)
        train_model(model, tokenizer, recipe, state / f"{part}.pt")
    model.to(torch.bfloat16).save_pretrained(args.output)
    save_tokenizer(tokenizer, args.output, calculator.CHAT_TEMPLATE)


def run_head(args: argparse.Namespace, state: pathlib.Path) -> None:
    tokenizer = Tokenizer.from_file(str(args.target / _TOKENIZER))
    target = Qwen3ForCausalLM.from_pretrained(args.target, dtype=torch.float32).eval()
    head = eagle3.make_head(target, tokenizer, eagle3.HeadShape())
    recipe, states = recipe_of("head", args), eagle3.target_states
    prompts = data.held_out_prompts(tokenizer)
    train_head(target, head, states, tokenizer, recipe, state / "head.pt", _few(prompts))
    eagle3.save_head(head, args.output)
    stored = eagle3.load_head(args.output, target)
    print("stored:", measure(target, stored, states, tokenizer, prompts))


def run_hybrid(args: argparse.Namespace, state: pathlib.Path) -> None:
    """The model from the dense one, then its MTP layer on the weights that are stored."""
    tokenizer = Tokenizer.from_file(str(args.target / _TOKENIZER))
    target = make_hybrid(tokenizer, HybridShape())
    start_from_dense(target, Qwen3ForCausalLM.from_pretrained(args.target, dtype=torch.float32))
    target.config.output_router_logits = True  # the loss keeps all experts in use
    train_model(target, tokenizer, recipe_of("hybrid", args), state / "hybrid.pt")
    target.config.output_router_logits = False
    round_weights(target)
    layer = mtp.MtpLayer(target)
    recipe, states = recipe_of("mtp", args), mtp.target_states
    prompts = data.held_out_prompts(tokenizer)
    del prompts["calls"]
    train_head(target, layer, states, tokenizer, recipe, state / "mtp.pt", _few(prompts))
    round_weights(layer)
    mtp.save_hybrid(target, layer, args.output)
    save_tokenizer(tokenizer, args.output)
    print("stored:", f"held-out sums {accuracy(target, tokenizer):.1%}",
          measure(target, layer, states, tokenizer, prompts))  # fmt: skip


def _few(prompts: Mapping[str, Sequence[list[int]]]) -> dict[str, Sequence[list[int]]]:
    """Some of each kind, which reports on the way ask."""
    return {kind: of_kind[:40] for kind, of_kind in prompts.items()}


PARTS: dict[str, Callable[[argparse.Namespace, pathlib.Path], None]] = {
    "model": run_model,
    "tools": run_tools,
    "head": run_head,
    "hybrid": run_hybrid,
}


def recipe_of(part: str, args: argparse.Namespace) -> Recipe:
    recipe = replace(RECIPES[part], seed=args.seed, report=args.report)
    return recipe if args.steps is None else replace(recipe, steps=args.steps)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", nargs="?", choices=tuple(PARTS), default="model")
    parser.add_argument("--output", type=pathlib.Path, required=True)
    parser.add_argument(
        "--target", type=pathlib.Path, default=pathlib.Path(__file__).parents[1],
        help="folder of the dense model that the others build on",
    )  # fmt: skip
    parser.add_argument("--steps", type=int, help="instead of the recipe's")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--report", type=int, default=250, help="steps between two measurements")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    PARTS[args.part](args, args.output.with_name(args.output.name + ".training"))


if __name__ == "__main__":
    main()
