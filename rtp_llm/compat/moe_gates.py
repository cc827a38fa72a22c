# SPDX-License-Identifier: Apache-2.0
"""Expert selection as objects that hold their settings."""

from __future__ import annotations

from torch import Tensor

from rtp_llm.ops.moe.moe import fake_balance_expert, group_topk, select_topk


class SelectTopk:
    """Softmax and top-k; see ops.select_topk. `has_moe_norm`: weights are normalised to sum 1."""

    def __init__(self, has_moe_norm: bool = False) -> None:
        self.has_moe_norm = has_moe_norm

    def forward(self, router_logits: Tensor, topk_ids: Tensor, topk_weights: Tensor) -> None:
        """router_logits float32 [T, E] -> topk_ids and topk_weights float32 [T, k], in place."""
        select_topk(router_logits, topk_ids, topk_weights, self.has_moe_norm)

    __call__ = forward


class GroupTopK:
    """Grouped top-k of sigmoid scores with a correction bias; see ops.group_topk."""

    def __init__(
        self,
        n_group: int = 1,
        topk_group: int = 1,
        renormalize: bool = True,
        routed_scaling_factor: float = 1.0,
    ) -> None:
        self.n_group, self.topk_group = n_group, topk_group
        self.renormalize, self.routed_scaling_factor = renormalize, routed_scaling_factor

    def forward(
        self, router_logits: Tensor, correction_bias: Tensor, topk_ids: Tensor, topk_weights: Tensor
    ) -> None:
        """router_logits float32 [T, E], correction_bias float32 [E]; results as in SelectTopk."""
        group_topk(
            router_logits,
            correction_bias,
            topk_ids,
            topk_weights,
            num_groups=self.n_group,
            top_groups=self.topk_group,
            group_best=min(2, router_logits.shape[1] // self.n_group),
            renormalize=self.renormalize,
            scaling=self.routed_scaling_factor,
        )

    __call__ = forward


class FakeBalanceExpert:
    """Ids that load every expert equally, for benchmarks; see ops.fake_balance_expert."""

    def __init__(
        self, expert_num: int, moe_k: int, dp_rank: int, dp_size: int, ep_size: int
    ) -> None:
        if not 1 <= moe_k <= expert_num or expert_num % ep_size:
            raise ValueError(
                f"expert_num {expert_num}, moe_k {moe_k}, ep_size {ep_size}: expected "
                "moe_k <= expert_num, and expert_num a multiple of ep_size"
            )
        self.expert_num, self.moe_k = expert_num, moe_k
        self.dp_rank, self.dp_size, self.ep_size = dp_rank, dp_size, ep_size

    def forward(self, expert_ids: Tensor, expert_scales: Tensor) -> None:
        """expert_ids [T, moe_k] of int32 or int64, expert_scales float32 [T, moe_k], in place."""
        fake_balance_expert(
            expert_ids,
            expert_scales,
            expert_num=self.expert_num,
            dp_rank=self.dp_rank,
            dp_size=self.dp_size,
            ep_size=self.ep_size,
        )

    __call__ = forward
