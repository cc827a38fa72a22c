# SPDX-License-Identifier: Apache-2.0
"""The space before a text, as transformers' class of the tokenizer has it.

tokenizer.json says one thing; the class that tokenizer_config.json names builds the step anew from
`add_prefix_space` and `legacy`, and says another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import tokenizers
from tokenizers import decoders, pre_tokenizers

_GENERIC = "TokenizersBackend"
# Model types with a tokenizer class of their own, or with none whatever the files say.
_REGISTERED = {
    "mistral": _GENERIC,
    "mixtral": _GENERIC,
    "qwen2": "Qwen2Tokenizer",
    "qwen2_moe": "Qwen2Tokenizer",
    "qwen3": "Qwen2Tokenizer",
    "qwen3_moe": "Qwen2Tokenizer",
    "qwen3_next": "Qwen2Tokenizer",
    "qwen3_5": "Qwen3_5Tokenizer",
    "qwen3_5_text": "Qwen3_5Tokenizer",
    "qwen3_5_moe": "Qwen3_5Tokenizer",
    "qwen3_5_moe_text": "Qwen3_5Tokenizer",
}
# The ones among them where that class counts even if the files name another.
_ALWAYS = frozenset({"qwen2", "qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text"})
_BYTE_LEVEL = frozenset({"GPT2Tokenizer", "Qwen2Tokenizer", "Qwen3_5Tokenizer"})
_METASPACE = "LlamaTokenizer"
_MARK = "▁"


def apply_prefix_space(
    backend: tokenizers.Tokenizer, config: Mapping[str, Any], tokenizer_config: Mapping[str, Any]
) -> None:
    """Set it in `backend`; both configs as their files hold them."""
    levels = [*_byte_levels(backend.pre_tokenizer)]
    name = tokenizer_class(config, tokenizer_config, bool(levels))
    if name in _BYTE_LEVEL:
        for level in levels:
            level.add_prefix_space = bool(tokenizer_config.get("add_prefix_space"))
    elif name == _METASPACE and not levels:
        _set_metaspace(backend, tokenizer_config)


def tokenizer_class(
    config: Mapping[str, Any], tokenizer_config: Mapping[str, Any], byte_level: bool
) -> str:
    """The class that AutoTokenizer takes, without "Fast"; empty if no file tells.

    ``byte_level``: the tokenizer works on bytes.
    """
    model_type = config.get("model_type")
    registered = _REGISTERED.get(model_type) if isinstance(model_type, str) else None
    named = tokenizer_config.get("tokenizer_class") or config.get("tokenizer_class")
    name = str(named or registered or "").removesuffix("Fast")
    if name == _METASPACE and byte_level and model_type not in _ALWAYS:
        return _GENERIC
    if registered is None or registered == name:
        return name
    if registered == _GENERIC:
        return _GENERIC
    return registered if model_type in _ALWAYS else name


def _byte_levels(step: Any) -> Iterator[pre_tokenizers.ByteLevel]:
    if isinstance(step, pre_tokenizers.ByteLevel):
        yield step
    elif isinstance(step, pre_tokenizers.Sequence):
        steps: Any = step  # its stub has no __iter__
        for each in steps:
            yield from _byte_levels(each)


def _set_metaspace(backend: tokenizers.Tokenizer, tokenizer_config: Mapping[str, Any]) -> None:
    given = tokenizer_config.get("add_prefix_space")
    adds = given is None or bool(given)
    scheme = "never"
    if adds:
        scheme = "always" if tokenizer_config.get("legacy") else "first"
    backend.normalizer = None
    backend.pre_tokenizer = pre_tokenizers.Metaspace(_MARK, prepend_scheme=scheme, split=False)
    parts: list[decoders.Decoder] = [
        decoders.Replace(_MARK, " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
    ]
    if adds:
        parts.append(decoders.Strip(" ", left=1))
    backend.decoder = decoders.Sequence(parts)
