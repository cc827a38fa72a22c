# SPDX-License-Identifier: Apache-2.0
"""What a mixture of experts is: numbers of experts, how they are chosen, names in checkpoints."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class ExpertNames:
    """Names of a block's parts in a checkpoint, below the block's own.

    `block`: the block's own name where it is not "mlp". `shared`: the shared experts as one.
    """

    block: str = "mlp"
    gate: str = "gate"
    experts: str = "experts"
    gate_proj: str = "gate_proj"
    up_proj: str = "up_proj"
    down_proj: str = "down_proj"
    shared: str = "shared_expert"
    shared_gate: str = "shared_expert_gate"


@dataclass(frozen=True)
class MoeConfig:
    """A mixture of experts; ops.select_topk and ops.group_topk say how they are chosen.

    `num_experts` are routed ones, `top_k` of which take each token; `intermediate_size` is that of
    one expert, `shared_intermediate_size` that of the shared experts together (0: none), whose sum
    a sigmoid weighs with `shared_gate`. `correction_bias`: the checkpoint has a bias that chooses.
    """

    hidden_size: int
    num_experts: int
    top_k: int
    intermediate_size: int
    scoring: str = "softmax"
    renormalize: bool = True
    scaling: float = 1.0
    correction_bias: bool = False
    num_groups: int = 1
    top_groups: int = 1
    group_best: int = 2
    shared_intermediate_size: int = 0
    shared_gate: bool = False
    activation: str = "silu"
    names: ExpertNames = field(default_factory=ExpertNames)

    def __post_init__(self) -> None:
        if not 1 <= self.top_k <= self.num_experts:
            raise ValueError(
                f"{self.top_k} experts of a token (num_experts_per_tok) out of {self.num_experts}: "
                "expected at least 1 and at most all"
            )
        self._check_groups()

    def _check_groups(self) -> None:
        groups, size = self.num_groups, self.num_experts // max(1, self.num_groups)
        if groups < 1 or self.num_experts % groups:
            raise ValueError(
                f"{self.num_experts} experts in {groups} groups (n_group): "
                "expected groups of one size"
            )
        if not 1 <= self.top_groups <= groups:
            raise ValueError(
                f"{self.top_groups} groups of a token (topk_group) out of {groups}: "
                "expected at least 1 and at most all"
            )
        if self.top_k > self.top_groups * size:
            raise ValueError(
                f"{self.top_k} experts of a token (num_experts_per_tok) out of {self.top_groups} "
                f"groups (topk_group) of {size}: expected at most those of the groups"
            )
        if not self.plain_softmax and not 1 <= self.group_best <= size:
            raise ValueError(
                f"the best {self.group_best} experts of a group count, and it has {size}: "
                "expected at least as many"
            )

    @property
    def plain_softmax(self) -> bool:
        """Whether softmax and the best of it is all of the selection."""
        plain = self.scoring == "softmax" and self.scaling == 1.0 and not self.correction_bias
        return plain and self.num_groups == self.top_groups
