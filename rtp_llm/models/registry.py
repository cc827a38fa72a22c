# SPDX-License-Identifier: Apache-2.0
"""The table from an architecture's name in config.json to its class and its tasks."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rtp_llm.config.tasks import Task

if TYPE_CHECKING:
    from rtp_llm.models.causal_lm import Architecture
    from rtp_llm.models.classifiers.classifier import HeadKind

# Each class is imported only when a model of its architecture is opened.
_DECODERS = {
    "DeepseekV2ForCausalLM": "rtp_llm.models.decoders.deepseek_v2:DeepseekV2ForCausalLM",
    "DeepseekV32ForCausalLM": "rtp_llm.models.decoders.deepseek_v32:DeepseekV32ForCausalLM",
    "DeepseekV3ForCausalLM": "rtp_llm.models.decoders.deepseek_v3:DeepseekV3ForCausalLM",
    "Ernie4_5_MoeForCausalLM": "rtp_llm.models.decoders.ernie4_5:Ernie4_5_MoeForCausalLM",
    "Ernie4_5ForCausalLM": "rtp_llm.models.decoders.ernie4_5:Ernie4_5ForCausalLM",
    "Exaone4ForCausalLM": "rtp_llm.models.decoders.exaone4:Exaone4ForCausalLM",
    "Gemma2ForCausalLM": "rtp_llm.models.decoders.gemma:Gemma2ForCausalLM",
    "Gemma3ForCausalLM": "rtp_llm.models.decoders.gemma:Gemma3ForCausalLM",
    "Gemma3ForConditionalGeneration": (
        "rtp_llm.models.decoders.gemma:Gemma3ForConditionalGeneration"
    ),
    "Gemma4ForCausalLM": "rtp_llm.models.gemma4.causal_lm:Gemma4ForCausalLM",
    "Gemma4ForConditionalGeneration": (
        "rtp_llm.models.gemma4.causal_lm:Gemma4ForConditionalGeneration"
    ),
    "Gemma4UnifiedForCausalLM": "rtp_llm.models.gemma4.causal_lm:Gemma4UnifiedForCausalLM",
    "Gemma4UnifiedForConditionalGeneration": (
        "rtp_llm.models.gemma4.causal_lm:Gemma4UnifiedForConditionalGeneration"
    ),
    "Glm4ForCausalLM": "rtp_llm.models.decoders.glm4:Glm4ForCausalLM",
    "Glm4MoeForCausalLM": "rtp_llm.models.decoders.glm4_moe:Glm4MoeForCausalLM",
    "Glm4MoeLiteForCausalLM": "rtp_llm.models.decoders.glm4_moe:Glm4MoeLiteForCausalLM",
    "GlmMoeDsaForCausalLM": "rtp_llm.models.decoders.glm_moe_dsa:GlmMoeDsaForCausalLM",
    "GptOssForCausalLM": "rtp_llm.models.decoders.gpt_oss:GptOssForCausalLM",
    "GraniteForCausalLM": "rtp_llm.models.decoders.granite:GraniteForCausalLM",
    "GraniteMoeForCausalLM": "rtp_llm.models.decoders.granite:GraniteMoeForCausalLM",
    "GraniteMoeHybridForCausalLM": "rtp_llm.models.hybrids.granite:GraniteMoeHybridForCausalLM",
    "LlamaForCausalLM": "rtp_llm.models.decoders.llama:LlamaForCausalLM",
    "MiniMaxM2ForCausalLM": "rtp_llm.models.decoders.minimax_m2:MiniMaxM2ForCausalLM",
    "Ministral3ForCausalLM": "rtp_llm.models.decoders.ministral3:Ministral3ForCausalLM",
    "Mistral3ForConditionalGeneration": (
        "rtp_llm.models.decoders.mistral3:Mistral3ForConditionalGeneration"
    ),
    "MistralForCausalLM": "rtp_llm.models.decoders.mistral:MistralForCausalLM",
    "MixtralForCausalLM": "rtp_llm.models.decoders.mixtral:MixtralForCausalLM",
    "NemotronHForCausalLM": "rtp_llm.models.hybrids.nemotron_h:NemotronHForCausalLM",
    "Olmo2ForCausalLM": "rtp_llm.models.decoders.olmo2:Olmo2ForCausalLM",
    "Olmo3ForCausalLM": "rtp_llm.models.decoders.olmo2:Olmo3ForCausalLM",
    "Phi3ForCausalLM": "rtp_llm.models.decoders.phi3:Phi3ForCausalLM",
    "Qwen2ForCausalLM": "rtp_llm.models.decoders.qwen2:Qwen2ForCausalLM",
    "Qwen2MoeForCausalLM": "rtp_llm.models.decoders.qwen2_moe:Qwen2MoeForCausalLM",
    "Qwen3_5ForCausalLM": "rtp_llm.models.hybrids.qwen3_5:Qwen3_5ForCausalLM",
    "Qwen3_5ForConditionalGeneration": (
        "rtp_llm.models.hybrids.qwen3_5:Qwen3_5ForConditionalGeneration"
    ),
    "Qwen3_5MoeForCausalLM": "rtp_llm.models.hybrids.qwen3_5_moe:Qwen3_5MoeForCausalLM",
    "Qwen3_5MoeForConditionalGeneration": (
        "rtp_llm.models.hybrids.qwen3_5_moe:Qwen3_5MoeForConditionalGeneration"
    ),
    "Qwen3ForCausalLM": "rtp_llm.models.decoders.qwen3:Qwen3ForCausalLM",
    "Qwen3MoeForCausalLM": "rtp_llm.models.decoders.qwen3_moe:Qwen3MoeForCausalLM",
    "Qwen3NextForCausalLM": "rtp_llm.models.hybrids.qwen3_next:Qwen3NextForCausalLM",
    "SeedOssForCausalLM": "rtp_llm.models.decoders.seed_oss:SeedOssForCausalLM",
    "SmolLM3ForCausalLM": "rtp_llm.models.decoders.smollm3:SmolLM3ForCausalLM",
}
_ENCODERS = {
    "Gemma3TextModel": "rtp_llm.models.encoders.gemma3:Gemma3TextModel",
    "Qwen2BidirectionalModel": "rtp_llm.models.encoders.qwen2:Qwen2BidirectionalModel",
}
# Encoders by the beginning of their names, which may end in several ways.
_ENCODER_FAMILIES = {
    "Bert": "rtp_llm.models.encoders.bert:BertModel",
    "DistilBert": "rtp_llm.models.encoders.distilbert:DistilBertModel",
    "Gte": "rtp_llm.models.encoders.gte:GteModel",
    "ModernBert": "rtp_llm.models.encoders.modernbert:ModernBertModel",
    "MPNet": "rtp_llm.models.encoders.mpnet:MPNetModel",
    "New": "rtp_llm.models.encoders.gte:NewModel",
    "Roberta": "rtp_llm.models.encoders.roberta:RobertaModel",
    "XLMRoberta": "rtp_llm.models.encoders.roberta:RobertaModel",
}
_ENCODER_TASKS: dict[str, tuple[Task, ...]] = {
    "Model": ("embed",),
    "ForMaskedLM": ("embed",),
    "ForSequenceClassification": ("classify", "reward"),
    "ForTokenClassification": ("token_classify", "reward"),
}

# Decoders with a head for scores or labels, by the beginning of their names.
_CLASSIFIERS = ("Llama", "Mistral", "Mixtral", "Qwen2", "Qwen2Moe", "Qwen3", "Qwen3Moe")
_HEADS: dict[str, tuple[HeadKind, tuple[Task, ...]]] = {
    "ForSequenceClassification": ("sequence", ("classify", "reward")),
    "ForTokenClassification": ("token", ("token_classify", "reward")),
    "ForRewardModel": ("reward", ("reward",)),
    "ForProcessRewardModel": ("process_reward", ("token_classify", "reward")),
}
# Those that are asked for the scores of two answers, "yes" and "no".
_SCORERS = ("Qwen3ForCausalLM",)


@dataclass(frozen=True)
class ModelRow:
    """``path`` is the "module:class" of an architecture, ``tasks`` what it can be served for,
    ``head`` what the class gets instead of logits."""

    path: str
    tasks: tuple[Task, ...]
    head: HeadKind | None = None


def _classifiers() -> dict[str, ModelRow]:
    return {
        f"{name}{end}": ModelRow(_DECODERS[f"{name}ForCausalLM"], tasks, kind)
        for end, (kind, tasks) in _HEADS.items()
        for name in (("Qwen2",) if "Reward" in end else _CLASSIFIERS)
    }


_ROWS = {
    **{
        name: ModelRow(path, ("generate", "embed", *(("score",) if name in _SCORERS else ())))
        for name, path in _DECODERS.items()
    },
    **_classifiers(),
    **{name: ModelRow(path, ("embed",)) for name, path in _ENCODERS.items()},
    **{
        f"{family}{end}": ModelRow(path, tasks)
        for end, tasks in _ENCODER_TASKS.items()
        for family, path in _ENCODER_FAMILIES.items()
    },
}


def known_architectures(task: Task | None = None) -> tuple[str, ...]:
    """Every name that model_class knows, or those that can be served for ``task``."""
    return tuple(name for name, row in _ROWS.items() if task is None or task in row.tasks)


def model_tasks(architecture: str) -> tuple[Task, ...]:
    """What a model of this architecture can be served for; by default for the first."""
    return _ROWS[architecture].tasks


def model_class(architecture: str) -> type[Architecture]:
    """The class for a name of known_architectures(); ValueError lists them for any other."""
    if architecture not in _ROWS:
        known = ", ".join(_ROWS)
        raise ValueError(f"architecture {architecture!r} is not supported; known: {known}")
    row = _ROWS[architecture]
    module, _, name = row.path.partition(":")
    found: Any = getattr(importlib.import_module(module), name)
    if row.head is not None:
        from rtp_llm.models.classifiers.classifier import classifier_class

        found = classifier_class(found, architecture, row.head)
    known_class: type[Architecture] = found
    return known_class
