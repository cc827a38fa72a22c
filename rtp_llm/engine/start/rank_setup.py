# SPDX-License-Identifier: Apache-2.0
"""What of a model is shared with other ranks, and what the settings say about it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rtp_llm.config.refusals import get_refusal
from rtp_llm.distributed.balancer import BalanceOptions, Balancer
from rtp_llm.distributed.lockstep import Lockstep
from rtp_llm.distributed.membership import Membership
from rtp_llm.distributed.symmetric_dispatch import SymmetricDispatch, TokenLayout
from rtp_llm.distributed.world import World
from rtp_llm.engine.messages import EngineStartError
from rtp_llm.engine.ranks.rank_steps import RankSteps
from rtp_llm.engine.start.memory_plan import step_limits
from rtp_llm.layers import torch_dtype
from rtp_llm.layers.moe.parallel import EvenSelections, ParallelExperts, ParallelOptions
from rtp_llm.layers.weights.shard import Shard
from rtp_llm.loader import resolve

if TYPE_CHECKING:
    from rtp_llm.config.settings import Settings
    from rtp_llm.device import Device
    from rtp_llm.engine.ranks.tensor_ranks import TensorRanks
    from rtp_llm.layers.moe import ExpertHooks
    from rtp_llm.models.causal_lm import CausalLM
    from rtp_llm.models.config import ModelConfig

# Where a step waits for the device, messages of fixed size are worth their padding up to here.
_CAPACITY = 256


@dataclass(frozen=True)
class Shared:
    """`experts` goes into the model's layers. Without `world` nothing is shared."""

    world: World | None = None
    experts: ExpertHooks | None = None

    def loaded(self, settings: Settings) -> None:
        """Wait until all ranks have loaded their weights, too: from here on they step together."""
        if self.world is not None:
            self.world.wait_for_all(settings.start_timeout)

    def steps(self, model: CausalLM, device: Device, settings: Settings) -> RankSteps | None:
        """How the engine of the loaded model steps."""
        if self.world is None or not isinstance(self.experts, ParallelExperts):
            return None
        experts = self.experts
        experts.attach(model)
        options = balance_options(settings)
        balancer = Balancer(self.world, device, experts.layers, experts.loads, options)
        return RankSteps(self.world, Lockstep(self.world.host), experts, balancer)


def share_model(
    settings: Settings,
    config: ModelConfig,
    device: Device,
    tensor: TensorRanks,
    environ: Mapping[str, str] = os.environ,
) -> Shared:
    """Meet the other ranks where this process is one of several and the model has experts; of
    engines that have several each, ``tensor`` has met them.

    Raises:
        EngineStartError: settings that fit neither the model nor the number of ranks.
        RankLostError: not all ranks came.
    """
    membership = Membership.read(environ)
    size = membership.size if membership else 1
    check_ranks(settings, config, size)
    if config.moe is None:
        return Shared()
    if membership is None:
        return Shared(experts=EvenSelections() if settings.fake_balance_expert else None)
    world = tensor.experts or World.connect(membership, device, settings.step_timeout)
    balance = balance_options(settings)
    options = ParallelOptions(
        redundant=settings.redundant_expert,
        counts=balance.counts,
        moves=balance.moves,
        fake_balance=settings.fake_balance_expert,
        padded_tokens=padded_tokens(settings, device),
    )
    part = Shard.even(config.moe.num_experts, tensor.parallel, "the number of experts").ranges[0]
    direct = None
    if tensor.experts is None:
        direct = _direct_dispatch(world, device, settings, config)
    experts = ParallelExperts(
        world, device, config.moe, config.moe_layers, options, direct, range(*part)
    )
    return Shared(world, experts)


def _direct_dispatch(
    world: World, device: Device, settings: Settings, config: ModelConfig
) -> SymmetricDispatch | None:
    """For steps of any size that the engine makes, if the buffers hold them."""
    assert config.moe is not None
    dtype = torch_dtype(resolve(settings, config, device))
    layout = TokenLayout(config.moe.hidden_size, dtype, config.moe.top_k)
    most = step_limits(settings, config, device).max_batch_tokens
    return SymmetricDispatch.connect(world.tensors, device, layout, most)


def balance_options(settings: Settings) -> BalanceOptions:
    """The settings of balancing as the balancer takes them."""
    return BalanceOptions(
        mode=settings.eplb_mode,
        update_steps=settings.eplb_update_time,
        layers_per_step=settings.eplb_balance_layer_per_step,
        policy=settings.balance_method,
        window=settings.eplb_stats_window_size,
    )


def check_ranks(settings: Settings, config: ModelConfig, size: int) -> None:
    """Raise EngineStartError for settings that this model cannot run with on `size` ranks."""
    if settings.data_parallel_size != size:
        raise EngineStartError(
            f"data_parallel_size={settings.data_parallel_size} needs as many processes, and this "
            f"is one of {size}: use LLM(...) or rtp-llm serve, which start them"
        )
    if size > 1 and settings.role != "both":
        raise EngineStartError(
            f"role={settings.role}: a worker for one part of requests has one rank; set "
            "data_parallel_size to 1 and start several workers"
        )
    _check_balancing(settings)
    requested = {
        "redundant_expert": settings.redundant_expert > 0,
        "eplb_mode": settings.eplb_mode != "none",
        "expert_capacity": settings.expert_capacity is not None,
        "fake_balance_expert": settings.fake_balance_expert,
    }
    named = [name for name, wanted in requested.items() if wanted]
    if config.moe is None:
        if named:
            raise EngineStartError(
                f"{named[0]}: {config.architecture} has no experts; leave it out"
            )
        return
    if size == 1 and named and named[0] != "fake_balance_expert":
        raise EngineStartError(
            f"{named[0]}: one rank has nothing to balance or to send; set data_parallel_size to 2 "
            "or more"
        )
    if settings.tensor_parallel_size > 1:
        _check_divided(config.moe.num_experts, settings, named)
        return
    _check_division(config.moe.num_experts, settings.redundant_expert, size)


def _check_balancing(settings: Settings) -> None:
    """What was set and is not read with this eplb_mode is a mistake."""
    balance = balance_options(settings)
    unread = [] if balance.counts else ["eplb_update_time", "eplb_stats_window_size"]
    unread += [] if balance.moves else ["eplb_balance_layer_per_step", "balance_method"]
    for name in unread:
        if getattr(settings, name) != getattr(type(settings), name):
            raise EngineStartError(
                f"{name}: eplb_mode={settings.eplb_mode} does not read it; set eplb_mode to eplb "
                "or all, or leave it out"
            )


def _check_divided(experts: int, settings: Settings, named: Sequence[str]) -> None:
    """Of engines of several tensor-parallel ranks; `named`: settings of experts that are set."""
    data, tensor = settings.data_parallel_size, settings.tensor_parallel_size
    if unread := [name for name in named if name != "expert_capacity"]:
        row = get_refusal("model", "tensor parallelism of experts with settings of their own")
        raise EngineStartError(f"{row.message} ({unread[0]}, tensor_parallel_size={tensor})")
    share, rest = divmod(experts, data * tensor)
    if rest:
        raise EngineStartError(
            f"{experts} experts cannot be divided evenly among data_parallel_size={data} x "
            f"tensor_parallel_size={tensor} = {data * tensor} ranks: {experts} = "
            f"{data * tensor} x {share} + {rest}"
        )


def _check_division(experts: int, spare: int, size: int) -> None:
    if (experts + spare) % size:
        raise EngineStartError(
            f"{experts} experts and redundant_expert={spare} cannot be divided evenly among "
            f"data_parallel_size={size} ranks; set redundant_expert to {-experts % size} or that "
            f"and a multiple of {size}"
        )
    if spare > experts * (size - 1):
        raise EngineStartError(
            f"redundant_expert={spare}: {size} ranks with a copy of each of {experts} experts take "
            f"at most {experts * (size - 1)}"
        )


def shares_experts(settings: Settings, config: ModelConfig) -> bool:
    """Whether ranks have experts for each other."""
    return settings.data_parallel_size > 1 and config.moe is not None


def padded_tokens(settings: Settings, device: Device) -> int:
    """Steps of at most so many tokens on every rank take messages of fixed size."""
    if settings.expert_capacity is not None:
        return settings.expert_capacity
    return _CAPACITY if device.asynchronous else 0


def host_threads(settings: Settings, device: Device) -> int:
    """Threads of this process; ranks whose device is the host itself share its cores."""
    threads = settings.num_threads or device.default_threads()
    if settings.num_threads or not device.shares_memory:
        return threads
    return max(1, threads // settings.local_ranks)
