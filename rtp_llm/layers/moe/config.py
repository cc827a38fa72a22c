# SPDX-License-Identifier: Apache-2.0
"""The config of a mixture of experts: sizes, selection, and names in checkpoints."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class ExpertNames:
    """Names of a block's parts in a checkpoint, relative to the block.

    `block` is the name of the block itself, usually "mlp" ("": parts are the layer's). `shared`
    names the shared experts, which form one module. `gate_up_proj`: the one tensor in which rows of
    the gate and of up alternate ("": each has its own); floats of such experts are stored
    transposed, [columns, rows]. `choice_bias` is that of the correction bias ("": the gate has it),
    whose tensor has `choice_bias_axes` axes, the last of them for experts.
    """

    block: str = "mlp"
    gate: str = "gate"
    experts: str = "experts"
    gate_proj: str = "gate_proj"
    up_proj: str = "up_proj"
    down_proj: str = "down_proj"
    gate_up_proj: str = ""
    shared: str = "shared_expert"
    shared_gate: str = "shared_expert_gate"
    choice_bias: str = ""
    choice_bias_axes: int = 1

    def path(self, layer: str) -> str:
        """The path of the block in the layer of path `layer`, both "a.b." style."""
        return f"{layer}{self.block}." if self.block else layer


@dataclass(frozen=True)
class MoeConfig:
    """A mixture of experts; see ops.select_topk and ops.group_topk for the selection.

    There are `num_experts` routed experts, and each token goes to `top_k` of them.
    `intermediate_size` is the size of one expert, `shared_intermediate_size` of all shared experts
    together (0: none); with `shared_gate` a sigmoid weighs their sum. `correction_bias`: the
    checkpoint has a bias that is used for the selection only; `router_bias` is added to the
    router's logits; `router_eps` is for routers with a norm. `expert_bias`: the projections of
    experts have biases. `activation` is that of GatedActivation, `alpha` and `limit` are for
    "swigluoai".
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
    router_bias: bool = False
    router_eps: float = 1e-6
    expert_bias: bool = False
    activation: str = "silu"
    alpha: float = 1.702
    limit: float = 7.0
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
    def why_not_plain(self) -> str:
        """What kernels that apply silu and add no biases lack; empty if nothing."""
        if self.activation != "silu":
            return f"its activation is silu, not {self.activation}"
        return "it adds no biases" if self.expert_bias else ""

    @property
    def plain_softmax(self) -> bool:
        """Whether the selection is a plain top-k of the softmax."""
        plain = self.scoring == "softmax" and self.scaling == 1.0 and not self.correction_bias
        return plain and self.num_groups == self.top_groups
