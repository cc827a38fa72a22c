# SPDX-License-Identifier: Apache-2.0
"""The forms of calls and of reasoning, by the names of vLLM's flags."""

from __future__ import annotations

from rtp_llm.text.parsers.calls.function_json import FunctionJson
from rtp_llm.text.parsers.calls.gemma import GemmaCalls
from rtp_llm.text.parsers.calls.gigachat import GigaChatCalls
from rtp_llm.text.parsers.calls.glm import GlmCalls, HyCalls
from rtp_llm.text.parsers.calls.harmony import Harmony
from rtp_llm.text.parsers.calls.json_calls import TaggedJson
from rtp_llm.text.parsers.calls.llama import LlamaJson
from rtp_llm.text.parsers.calls.mistral import MistralCalls
from rtp_llm.text.parsers.calls.namespaced_xml import NamespacedXml
from rtp_llm.text.parsers.calls.pythonic import PythonicCalls
from rtp_llm.text.parsers.calls.section_calls import SectionCalls
from rtp_llm.text.parsers.calls.typed_values import ANY, STRING
from rtp_llm.text.parsers.calls.xml_calls import XmlCalls
from rtp_llm.text.parsers.parser import ToolFormat
from rtp_llm.text.parsers.thinking import Thinking

_QWEN3_CODER = XmlCalls(
    open="<tool_call>",
    close="</tool_call>",
    call="<function=",
    name_end=">",
    parameter="<parameter=",
    key_ends={">": None},
    value_end="</parameter>",
    call_end="</function>",
    in_lines=True,
    bare=True,
)
_SEED_OSS = XmlCalls(
    open="<seed:tool_call>",
    close="</seed:tool_call>",
    call="<function=",
    name_end=">",
    parameter="<parameter=",
    key_ends={">": None},
    value_end="</parameter>",
    call_end="</function>",
)
_MINIMAX_M2 = XmlCalls(
    open="<minimax:tool_call>",
    close="</minimax:tool_call>",
    call='<invoke name="',
    name_end='">',
    parameter='<parameter name="',
    key_ends={'">': None},
    value_end="</parameter>",
    call_end="</invoke>",
)


def _dsml(section: str) -> XmlCalls:
    return XmlCalls(
        open=f"<｜DSML｜{section}>",
        close=f"</｜DSML｜{section}>",
        call='<｜DSML｜invoke name="',
        name_end='">',
        parameter='<｜DSML｜parameter name="',
        key_ends={'" string="true">': STRING, '" string="false">': ANY},
        value_end="</｜DSML｜parameter>",
        call_end="</｜DSML｜invoke>",
    )


def _deepseek(*, fenced: bool) -> SectionCalls:
    return SectionCalls(
        open="<｜tool▁calls▁begin｜>",
        close="<｜tool▁calls▁end｜>",
        call="<｜tool▁call▁begin｜>",
        separator="<｜tool▁sep｜>",
        call_end="<｜tool▁call▁end｜>",
        fenced=fenced,
    )


_KIMI_K2 = SectionCalls(
    open="<|tool_calls_section_begin|>",
    close="<|tool_calls_section_end|>",
    call="<|tool_call_begin|>",
    separator="<|tool_call_argument_begin|>",
    call_end="<|tool_call_end|>",
    ids=True,
)

CALLS: dict[str, ToolFormat] = {
    "hermes": TaggedJson("<tool_call>", "</tool_call>"),
    "qwen3_coder": _QWEN3_CODER,
    "llama3_json": LlamaJson("<|python_tag|>"),
    "llama4_json": LlamaJson("<|python_start|>", "<|python_end|>"),
    "pythonic": PythonicCalls(),
    "llama4_pythonic": PythonicCalls("<|python_start|>", "<|python_end|>"),
    "olmo3": PythonicCalls("<function_calls>", "</function_calls>", lines=True),
    "mistral": MistralCalls(),
    "deepseek_v3": _deepseek(fenced=True),
    "deepseek_v31": _deepseek(fenced=False),
    "deepseek_v32": _dsml("function_calls"),
    "deepseek_v4": _dsml("tool_calls"),
    "glm45": GlmCalls(),
    "glm47": GlmCalls(),
    "kimi_k2": _KIMI_K2,
    "openai": Harmony(),
    "minimax_m2": _MINIMAX_M2,
    "minimax_m3": NamespacedXml(),
    "seed_oss": _SEED_OSS,
    "minimax": TaggedJson("<tool_calls>", "</tool_calls>"),
    "hunyuan_a13b": TaggedJson("<tool_calls>", "</tool_calls>"),
    "jamba": TaggedJson("<tool_calls>", "</tool_calls>"),
    "longcat": TaggedJson("<longcat_tool_call>", "</longcat_tool_call>"),
    "granite": TaggedJson("<|tool_call|>"),
    "internlm": TaggedJson("<|action_start|><|plugin|>", "<|action_end|>"),
    "phi4_mini_json": TaggedJson("functools"),
    "phi4_mini": TaggedJson("<|tool_call|>", "<|/tool_call|>"),
    "nemotron_json": TaggedJson("<TOOLCALL>", "</TOOLCALL>"),
    "lfm2": PythonicCalls("<|tool_call_start|>", "<|tool_call_end|>"),
    "functionary_v31": FunctionJson(),
    "gemma4": GemmaCalls(),
    "gigachat3": GigaChatCalls(),
    "cohere_command3": TaggedJson("<|START_ACTION|>", "<|END_ACTION|>", name="tool_name"),
    "command_r": TaggedJson("Action:", "```", lead="```json", name="tool_name"),
    "hy_v3": HyCalls(),
}
CALL_ALIASES = {
    "deepseekv3": "deepseek_v3",
    "ernie45": "hermes",
    "granite4": "hermes",
    "deepseekv31": "deepseek_v31",
    "deepseekv32": "deepseek_v32",
    "deepseekv4": "deepseek_v4",
    "glm": "glm45",
    "apriel": "hunyuan_a13b",
    "cohere_command4": "cohere_command3",
    "gpt-oss": "openai",
    "harmony": "openai",
    "llama3": "llama3_json",
    "minimax-m2": "minimax_m2",
    "minimax-m3": "minimax_m3",
    "qwen": "hermes",
    "qwen25": "hermes",
    "qwen3_xml": "qwen3_coder",
    "step3p5": "qwen3_coder",
}

_THINK = Thinking("<think>", "</think>")
HARMONY = "openai_gptoss"
REASONING: dict[str, Thinking] = {
    # Qwen3.5 may call without having closed its reasoning, which may also mention the tag.
    "qwen3": Thinking(
        "<think>", "</think>", ("\n<tool_call>\n<function=", '\n<tool_call>\n{"name"')
    ),
    "deepseek_r1": _THINK,
    "deepseek_v3": Thinking("<think>", "</think>", ("<｜tool▁calls▁begin｜>",)),
    "glm45": _THINK,
    "kimi_k2": Thinking("<think>", "</think>", ("<|tool_calls_section_begin|>",)),
    "minimax_m2": _THINK,
    "nemotron_v3": _THINK,
    "ernie45": _THINK,
    "holo2": _THINK,
    "olmo3": _THINK,
    "step3": _THINK,
    "seed_oss": Thinking("<seed:think>", "</seed:think>"),
    "gemma4": Thinking("<|channel>thought\n", "<channel|>", ("<|tool_call>call:",)),
    "minimax_m3": Thinking("<mm:think>", "</mm:think>", stray_end=True),
    "cohere_command3": Thinking(
        "<|START_THINKING|>", "<|END_THINKING|>", ("<|START_ACTION|>", "<|START_RESPONSE|>")
    ),
    "mistral": Thinking("[THINK]", "[/THINK]", ("[TOOL_CALLS]",)),
    # An answer of gpt-oss proper begins with this, whether or not it had an analysis.
    HARMONY: Thinking("", "<|channel|>final<|message|>"),
}
REASONING_ALIASES = {
    "cohere_command4": "cohere_command3",
    "deepseek-r1": "deepseek_r1",
    "deepseek-v3": "deepseek_v3",
    "deepseek_v4": "deepseek_v3",
    "glm47": "glm45",
    "mimo": "qwen3",
    "gpt-oss": HARMONY,
    "harmony": HARMONY,
    "kimi": "kimi_k2",
    "minimax": "minimax_m2",
    "minimax-m3": "minimax_m3",
    "nano_v3": "nemotron_v3",
    "qwen3-thinking": "qwen3",
    "step3p5": "step3",
}


def calls(name: str) -> ToolFormat:
    """A form of calls. Raises KeyError."""
    return CALLS[CALL_ALIASES.get(name, name)]


def reasoning(name: str) -> Thinking:
    """A form of reasoning. Raises KeyError."""
    return REASONING[REASONING_ALIASES.get(name, name)]


def is_harmony(form: str | None) -> bool:
    """Whether a form, of calls or of reasoning, is gpt-oss's, one form for both."""
    return form is not None and (
        CALL_ALIASES.get(form, form) == "openai" or REASONING_ALIASES.get(form, form) == HARMONY
    )
