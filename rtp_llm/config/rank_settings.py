# SPDX-License-Identifier: Apache-2.0
"""Settings of multi-process engines and of expert load balancing."""

from __future__ import annotations

from dataclasses import dataclass

from rtp_llm.config.options import option


@dataclass(frozen=True, kw_only=True)
class RankSettings:
    """The group of Settings that only engines with several ranks read."""

    data_parallel_size: int = option(
        1,
        "integer",
        "ranks",
        "Engine processes on as many devices: requests are divided among them, and so are the "
        "experts of a mixture; all other weights are replicated (docs/parallel.md).",
        minimum=1,
        maximum=1024,
        aliases=("--dp-size", "--dp", "-dp"),
    )
    tensor_parallel_size: int = option(
        1,
        "integer",
        "ranks",
        "Devices that compute each model together: every layer is divided among as many "
        "processes (docs/parallel.md).",
        minimum=1,
        maximum=64,
        aliases=("--tp-size", "--tp", "-tp"),
    )
    pipeline_parallel_size: int = option(
        1,
        "integer",
        "ranks",
        "Stages that the layers of each model are divided into, each of tensor_parallel_size "
        "devices (docs/parallel.md).",
        minimum=1,
        maximum=1024,
        aliases=("--pp-size", "--pp", "-pp"),
    )
    expert_parallel_size: int | None = option(
        None,
        "integer",
        "ranks",
        "Ranks that the experts of a mixture are divided among: all of them.",
        minimum=1,
        maximum=1024,
        automatic="data_parallel_size x tensor_parallel_size",
        aliases=("--ep-size", "--ep"),
        advanced=True,
    )
    nnodes: int = option(
        1,
        "integer",
        "ranks",
        "Nodes (machines) that hold the ranks of one model together. All are started with the same "
        "settings but for --node-rank (docs/parallel.md).",
        minimum=1,
        maximum=1024,
        unit="nodes",
        aliases=("-n",),
        advanced=True,
    )
    node_rank: int = option(
        0,
        "integer",
        "ranks",
        "Which of the --nnodes this one is. Node 0 serves; the others hold ranks.",
        minimum=0,
        maximum=1023,
        aliases=("-r",),
        advanced=True,
    )
    master_addr: str = option(
        "",
        "text",
        "ranks",
        "Address of node 0, as HOST or HOST:PORT, where the others come to it.",
        aliases=("--dist-init-addr", "--nccl-init-addr"),
        advanced=True,
    )
    master_port: int = option(
        29501,
        "integer",
        "ranks",
        "Port of --master-addr, where that names none.",
        minimum=1,
        maximum=65535,
        advanced=True,
    )
    cluster: str = option(
        "",
        "text",
        "ranks",
        "Ray cluster that runs the --data-parallel-size replicas: auto, or ray://HOST:PORT. "
        " This process is the router before them (docs/cluster.md).",
        advanced=True,
    )
    prefill_replicas: int = option(
        0,
        "integer",
        "ranks",
        "Of --cluster: replicas that compute prompts for the --data-parallel-size others, which "
        "then have the role decode.",
        minimum=0,
        maximum=1024,
        advanced=True,
    )
    expert_capacity: int | None = option(
        None,
        "integer",
        "ranks",
        "Tokens of each rank up to which experts are dispatched in low-latency mode: messages of "
        "a fixed size, for which the host never waits. Larger steps are dispatched in normal mode.",
        unit="tokens",
        minimum=0,
        maximum=65536,
        automatic="256 on a GPU, 0 on the CPU",
        advanced=True,
    )
    redundant_expert: int = option(
        0,
        "integer",
        "ranks",
        "Copies of experts beyond one of each, in every layer, over all ranks together.",
        minimum=0,
        maximum=65536,
        advanced=True,
    )
    eplb_mode: str = option(
        "none",
        "text",
        "ranks",
        "Balancing of experts: stats logs how evenly ranks are loaded, eplb moves experts while "
        "requests run, all does both.",
        choices=("none", "stats", "eplb", "all"),
        advanced=True,
    )
    eplb_update_time: int = option(
        5000,
        "integer",
        "ranks",
        "Steps between two measurements of expert load, each followed by a new plan.",
        unit="steps",
        minimum=1,
        maximum=2**30,
        advanced=True,
    )
    eplb_balance_layer_per_step: int = option(
        1,
        "integer",
        "ranks",
        "Layers that are planned at a time.",
        minimum=1,
        maximum=4096,
        advanced=True,
    )
    eplb_stats_window_size: int = option(
        10,
        "integer",
        "ranks",
        "Measurements of expert load that a plan takes into account.",
        minimum=1,
        maximum=4096,
        advanced=True,
    )
    balance_method: str = option(
        "mix",
        "text",
        "ranks",
        "Which layers come next: in turn, at random, the most unbalanced ones, or a mix of these "
        "and in turn.",
        choices=("round", "random", "most_unbalanced_layer", "mix"),
        advanced=True,
    )
    fake_balance_expert: bool = option(
        False,
        "switch",
        "ranks",
        "Replace the selection of experts by a balanced one. For measuring only: answers are "
        "wrong.",
        advanced=True,
    )

    @property
    def ranks_per_engine(self) -> int:
        """Number of processes that compute one model together."""
        return self.pipeline_parallel_size * self.tensor_parallel_size

    @property
    def num_ranks(self) -> int:
        """Number of compute processes of all engines together."""
        return self.data_parallel_size * self.ranks_per_engine

    @property
    def local_ranks(self) -> int:
        """Number of compute processes on this machine."""
        return self.num_ranks // self.nnodes
