# SPDX-License-Identifier: Apache-2.0
"""Rows of the table of refusals for several ranks."""

from __future__ import annotations

from rtp_llm.config.refusal import Refusal

RANK_REFUSALS: tuple[Refusal, ...] = (
    Refusal(
        "ranks",
        "WORLD_SIZE of another launcher",
        "An engine starts its ranks by itself.",
        "Start one server, without WORLD_SIZE, and set --tensor-parallel-size.",
    ),
    Refusal(
        "ranks",
        "more ranks than devices",
        "Each rank has a device of its own.",
        "Lower --tensor-parallel-size, --pipeline-parallel-size or --data-parallel-size, or let "
        "more devices be visible.",
    ),
    Refusal(
        "ranks",
        "--tensor-parallel-size that does not divide the attention heads",
        "Each rank has as many of them as every other, and whole KV heads.",
        "Set --tensor-parallel-size to a divisor of num_attention_heads that divides "
        "num_key_value_heads or is a multiple of it.",
    ),
    Refusal(
        "ranks",
        "--pipeline-parallel-size above the number of layers",
        "Each stage has at least one layer.",
        "Lower --pipeline-parallel-size; --tensor-parallel-size divides every layer.",
    ),
    Refusal(
        "ranks",
        "--pipeline-parallel-size for a model with an indexer",
        "Layers of one stage could need a selection that was made on another.",
        "Leave --pipeline-parallel-size out; --tensor-parallel-size divides every layer.",
    ),
    Refusal(
        "ranks",
        "--pipeline-parallel-size with --speculative",
        "A sequence's next step begins when its token is known; no stage drafts or takes drafts.",
        "Leave one of the two out; --tensor-parallel-size works with --speculative.",
    ),
    Refusal(
        "ranks",
        "--pipeline-parallel-size with --enable-overlap",
        "As many batches as stages are in flight; no step begins before the tokens that it reads "
        "are known.",
        "Leave --enable-overlap out: stages overlap by themselves.",
    ),
    Refusal(
        "ranks",
        "--pipeline-parallel-size with --data-parallel-size for a mixture of experts",
        "Ranks that share experts step together, and stages do not.",
        "Set one of the two to 1; --tensor-parallel-size divides the experts of a stage.",
    ),
    Refusal(
        "ranks",
        "--pipeline-parallel-size with --role",
        "A prefill or decode worker sends and takes the KV cache of all layers.",
        "Leave --pipeline-parallel-size out there, or serve with --role both.",
    ),
    Refusal(
        "ranks",
        "--pipeline-parallel-size with layers that read what the first ones have",
        "Layers of Gemma 4 E2B and E4B read keys and values of earlier layers, and embeddings of "
        "the first stage.",
        "Leave --pipeline-parallel-size out; --tensor-parallel-size divides every layer.",
    ),
    Refusal(
        "ranks",
        "--expert-parallel-size",
        "Experts are divided among all ranks that have a layer, of all engines.",
        "Leave it out, or set it to --data-parallel-size x --tensor-parallel-size.",
    ),
    Refusal(
        "ranks",
        "--kv-transport of several ranks",
        "Each rank of a prefill or decode worker fetches the heads that it has, out of blocks of "
        "other sizes, which only TCP does.",
        "Leave --kv-transport out, or set --tensor-parallel-size to 1.",
    ),
    Refusal(
        "ranks",
        "--nnodes that does not divide the ranks",
        "Each machine holds as many ranks as every other, in their order.",
        "Set --tensor-parallel-size times --pipeline-parallel-size to a multiple of --nnodes.",
    ),
    Refusal(
        "ranks",
        "--nnodes with --data-parallel-size",
        "Data-parallel engines run independently and need not know each other.",
        "Start a server on each machine, and `rtp-llm route` before them.",
    ),
    Refusal(
        "ranks",
        "--nnodes with --role",
        "A prefill or decode worker is on one machine.",
        "Leave --nnodes out there, or serve with --role both.",
    ),
    Refusal(
        "ranks",
        "--nnodes without --worker-key-file",
        "Whoever reaches --master-addr could join, or read what is asked.",
        "Give all machines a file with one key, made by: openssl rand -hex 32.",
    ),
    Refusal(
        "ranks",
        "logits_processors of several ranks",
        "They run in the caller's process and the engine in others.",
        "Leave them out, or set --tensor-parallel-size, --pipeline-parallel-size and "
        "--data-parallel-size to 1.",
    ),
)
