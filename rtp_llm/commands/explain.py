# SPDX-License-Identifier: Apache-2.0
"""`rtp-llm explain`: how a model would run on this machine, or why it could not be served."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rtp_llm.commands.command import CommandError, load_model_settings
from rtp_llm.config.command_line import build_parser
from rtp_llm.config.settings import Settings

if TYPE_CHECKING:
    from rtp_llm.device import Device
    from rtp_llm.models.config import ModelConfig


def parser() -> argparse.ArgumentParser:
    """Accepts the flags of `rtp-llm serve`."""
    return build_parser(
        "rtp-llm explain",
        "Say how a model would run on this machine, without loading its weights: device, number "
        "type, attention and experts, speculation, graphs, KV cache and how many tokens fit, "
        "tool calls and reasoning. What a start would refuse is refused here with the same "
        "reason. It takes the flags of `rtp-llm serve`.",
    )


def main(words: Sequence[str]) -> int:
    """Print the explanation; raises CommandError where starting would fail."""
    settings = load_model_settings(words, parser()).settings
    from rtp_llm.engine.messages import EngineStartError

    try:
        _explain(settings)
    except (EngineStartError, ValueError) as error:  # errors of files and settings, too
        raise CommandError(str(error)) from error
    return 0


def _explain(settings: Settings) -> None:
    from rtp_llm.config.nodes import check_nodes
    from rtp_llm.config.roles import check_role
    from rtp_llm.text.model_files import ModelFiles, check_folder

    check_role(settings)
    check_nodes(settings)
    check_folder(settings.model)
    template = ModelFiles.read(settings.model).chat_template_source(settings.chat_template)
    _explain_engine(settings)
    print(f"chat template: {template or 'none; only completions are served'}")


def _explain_tasks(settings: Settings, config: ModelConfig) -> str:
    """What the model is served for, and what it could be."""
    from rtp_llm.config.tasks import served_tasks
    from rtp_llm.engine.start.model_pooling import model_pooling

    tasks = served_tasks(settings.task, config.tasks)
    others = [task for task in config.tasks if task not in tasks]
    more = f" (--task all: {', '.join(others)}, too)" if others else ""
    lines = [f"tasks: {', '.join(tasks)}{more}"]
    if "embed" in tasks:
        params = model_pooling(settings.model, config).params
        length = ", normalised" if params.normalize else ""
        lines.append(f"embeddings: pooled by {params.pooling_type}{length}")
    if config.classifier is not None:
        head = config.classifier
        where = "tokens" if head.per_token else "texts"
        lines.append(f"labels: {len(head.labels)} of {where}, {head.activation}")
    return "\n".join(lines)


def _explain_engine(settings: Settings) -> None:
    from rtp_llm.device import known_devices, resolve_device
    from rtp_llm.device.built import describe_build
    from rtp_llm.engine.ranks.explain_ranks import explain_ranks
    from rtp_llm.engine.ranks.topology_checks import check_topology
    from rtp_llm.engine.start.encoder_checks import check_encoder
    from rtp_llm.engine.start.explain_speculation import explain_speculation
    from rtp_llm.engine.start.memory_estimate import explain_cache, explain_graphs
    from rtp_llm.engine.start.rank_setup import check_ranks
    from rtp_llm.engine.start.start_checks import check_settings
    from rtp_llm.models.config_reader import read_model_config

    print(f"build: {describe_build(known_devices())}")
    device = resolve_device(settings.device_type)
    check_settings(settings, device)
    config = read_model_config(settings.model, **settings.draft_head)
    check_encoder(settings, config)
    check_ranks(settings, config, settings.data_parallel_size)
    check_topology(settings, config, device)
    print(_explain_tasks(settings, config))
    print(explain_ranks(settings, device, is_mixture=config.moe is not None))
    print(_explain_model(settings, device))
    print(explain_speculation(settings, device))
    print(explain_graphs(settings, device))
    print(_explain_syntax(settings))
    print(explain_cache(settings, device))


def _explain_syntax(settings: Settings) -> str:
    """How tool calls and reasoning are parsed, in words."""
    from rtp_llm.server.turn.answer_syntax import check_syntax, choose_syntax
    from rtp_llm.text.tokenizer import Tokenizer

    check_syntax(settings)
    return choose_syntax(
        settings, Tokenizer.from_folder(settings.model, settings.chat_template)
    ).why


def _explain_model(settings: Settings, device: Device) -> str:
    """Each tensor-parallel rank's share of the model and its backends, in words."""
    from rtp_llm.loader import explain

    return explain(
        settings.model,
        device=device,
        settings=settings,
        tensor_parallel_size=settings.tensor_parallel_size,
        **settings.draft_head,
    )
