# SPDX-License-Identifier: Apache-2.0
"""How a text is cut before byte-level BPE, by the name in tokenizer.ggml.pre.

The patterns are those of the models' own tokenizer.json. Each one of a list cuts the pieces that
the ones before it left.
"""

from __future__ import annotations

from dataclasses import dataclass

_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LINES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_SIGNS = r" ?[^\s\p{L}\p{N}]+"
_LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_UPPER, _LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"


def _class(ranges: str) -> str:
    """Characters for a pair of brackets, from hexadecimal ranges such as "41-5A 5F"."""
    return "".join(
        "-".join(chr(int(code, 16)) for code in each.split("-")) for each in ranges.split()
    )


_HAN_AND_KANA = _class("4E00-9FA5 3040-309F 30A0-30FF")
_ASIAN = _class("4E00-9FA5 800-4E00 AC00-D7FF")


def _words(digits: str, signs: str = rf"{_SIGNS}[\r\n]*") -> str:
    """Llama 3's pattern and those made of it, which differ in the length of numbers."""
    return rf"{_ENDINGS}|{_LETTERS}|{digits}|{signs}|{_LINES}"


def _cases(digits: str, endings: str = rf"{_ENDINGS}?", outside: str = "", tail: str = "/") -> str:
    """Words cut where small letters are followed by capitals, as in o200k; `outside` narrows the
    letters."""
    upper, lower = f"[{_UPPER}{outside}]", f"[{_LOWER}{outside}]"
    first = rf"[^\r\n\p{{L}}\p{{N}}]?{upper}*{lower}+{endings}"
    second = rf"[^\r\n\p{{L}}\p{{N}}]?{upper}+{lower}*{endings}"
    return rf"{first}|{second}|{digits}|{_SIGNS}[\r\n{tail}]*|{_LINES}"


_UP_TO_3 = r"\p{N}{1,3}"
_LLAMA3 = _words(_UP_TO_3)
_QWEN2 = _words(r"\p{N}")
_QWEN35 = (
    rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_LINES}"
)
_O200K = _cases(_UP_TO_3)
_TEKKEN = _cases(r"\p{N}", endings="")
_NOT_HAN = r"&&[^\p{Han}]"
_KIMI = r"[\p{Han}]+|" + _cases(_UP_TO_3, outside=_NOT_HAN, tail="")
_DEEPSEEK_V3 = (
    _UP_TO_3,
    f"[{_HAN_AND_KANA}]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_LINES}",
)
_CASED = _class(
    "41-5A 61-7A B5 C0-D6 D8-F6 F8-1BA 1BC-1BF 1C4-293 295-2AF 370-373 376-377 37B-37D 37F "
    "386 388-38A 38C 38E-3A1 3A3-3F5 3F7-481 48A-52F 531-556 10A0-10C5 13A0-13F5 13F8-13FD "
    "1C90-1CBA 1CBD-1CBF 1D00-1D2B 1D6B-1D77 1D79-1D9A 1E00-1F15 1F18-1F1D 1F20-1F45 "
    "1F48-1F4D 1F50-1F57 1F59 1F5B 1F5D 1F5F-1F7D 1F80-1FB4 1FB6-1FBC 1FBE 1FC2-1FC4 "
    "1FC6-1FCC 1FD0-1FD3 1FD6-1FDB 1FE0-1FEC 1FF2-1FF4 1FF6-1FFC 2102 2107 210A-2113 2115 "
    "2119-211D 2124 2126 2128 212A-212D 212F-2134 2139 213C-213F 2145-2149 214E 2183-2184 "
    "2C00-2C7B 2C7E-2CE4 2CEB-2CEE 2CF2-2CF3 A640-A66D A680-A69B A722-A76F A771-A787 "
    "A78B-A78E AB70-ABBF FB00-FB06 FB13-FB17 FF21-FF3A FF41-FF5A 10400-1044F 104B0-104D3 "
    "104D8-104FB 10C80-10CB2 10CC0-10CF2 118A0-118DF 1E900-1E943"
)
_DEEPSEEK_LLM = (
    r"[\r\n]",
    rf"\s?[{_CASED}]+",
    rf"\s?[!-/:-~{_class('FF01-FF0F FF1A-FF5E 2018-201F 3000-3002')}]+",
    r"\s+$",
    f"[{_ASIAN}]+",
    r"\p{N}+",
)
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", f"[{_ASIAN}]+", r"\p{N}")
_BLOOM = rf" ?[^(\s|.,!?{_class('2026 3002 FF0C 3001 964 6D4 60C')})]+"
_THREE_DIGITS = "[0-9][0-9][0-9]"
_FALCON = (r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, _THREE_DIGITS)
_DEFAULT = (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", _THREE_DIGITS)
_BAILING = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+"
)
_SEED = rf"{_ENDINGS}|{_LETTERS}|\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_LINES}"
_EXAONE_MOE = (
    rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
    rf"|{_SIGNS}[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
)
_SIGNS_OF_CHINESE = "FF01 2026 201C 201D 2018 2019 2014 FF1A FF1B FF0C 3001-303F FE30-FE4F"
_YOUTU = (
    f"[{_class('AC00-D7A3 3131-318E')}]+|[{_class(_SIGNS_OF_CHINESE)}]+"
    f"|[{_class('3105-312F')}]+|[{_HAN_AND_KANA}]+",
    _cases(r"\p{N}"),
)
_TINY_AYA = (r"\d{1,3}(?=(?:\d{3})*\b)", _O200K)
_MINICPM5 = (_UP_TO_3, _words(r"\p{N}+"))
_JAIS2 = _LLAMA3.removesuffix(r"\s+(?!\S)|\s+") + (
    r"\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)"
    r"|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}"
)


@dataclass(frozen=True)
class PreTokenizer:
    """`patterns` cut one after the other. `nfc`: texts are composed first. `whole_words`: a piece
    that is a token is taken without merging. `add_bos`: unless the file says otherwise."""

    patterns: tuple[str, ...]
    nfc: bool = False
    whole_words: bool = False
    add_bos: bool = False


_GPT2_DIGITS = (r"\p{N}", _GPT2)
_TABLE: tuple[tuple[str, PreTokenizer], ...] = (
    ("default", PreTokenizer(_DEFAULT)),
    (
        "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
        PreTokenizer((_LLAMA3,), whole_words=True, add_bos=True),
    ),
    ("dbrx smaug-bpe glm4 chatglm-bpe", PreTokenizer((_LLAMA3,))),
    ("jais-2", PreTokenizer((_JAIS2,))),
    ("minicpm5", PreTokenizer(_MINICPM5, whole_words=True)),
    ("deepseek-llm", PreTokenizer(_DEEPSEEK_LLM)),
    ("deepseek-coder", PreTokenizer(_DEEPSEEK_CODER)),
    ("deepseek-v3 hunyuan-dense joyai-llm hy_v4", PreTokenizer(_DEEPSEEK_V3)),
    ("falcon", PreTokenizer(_FALCON)),
    (
        "starcoder refact smollm codeshell exaone minerva-7b mellum2",
        PreTokenizer(_GPT2_DIGITS),
    ),
    ("command-r", PreTokenizer(_GPT2_DIGITS, nfc=True)),
    (
        "gpt-2 phi-2 jina-es jina-de jina-v1-en jina-v2-es jina-v2-de jina-v2-code roberta-bpe "
        "gigachat a.x-4.0 mellum jais trillion granite-docling exaone4",
        PreTokenizer((_GPT2,)),
    ),
    ("mpt olmo modern-bert", PreTokenizer((_GPT2,), nfc=True)),
    ("qwen2 deepseek-r1-qwen kormo f2llmv2", PreTokenizer((_QWEN2,), nfc=True)),
    ("stablelm2 hunyuan solar-open megrez grok-2", PreTokenizer((_QWEN2,))),
    ("qwen35", PreTokenizer((_QWEN35,), nfc=True)),
    ("poro-chat bloom gpt3-finnish", PreTokenizer((_BLOOM,))),
    ("viking", PreTokenizer((_BLOOM, r"\p{N}"))),
    ("tekken", PreTokenizer((_TEKKEN,), whole_words=True, add_bos=True)),
    ("gpt-4o llama4 kanana2 talkie minimax-m2", PreTokenizer((_O200K,))),
    ("granite-embed-multi-97m", PreTokenizer((_O200K,), whole_words=True)),
    ("tiny_aya cohere2moe", PreTokenizer(_TINY_AYA)),
    ("kimi-k2", PreTokenizer((_KIMI,))),
    ("bailingmoe bailingmoe2 llada-moe", PreTokenizer((_BAILING,))),
    ("seed-coder", PreTokenizer((_SEED,))),
    ("exaone-moe", PreTokenizer((_EXAONE_MOE,))),
    ("youtu", PreTokenizer(_YOUTU, whole_words=True)),
    ("laguna", PreTokenizer((r"[^\n]+|[\n]+", _QWEN2))),
    ("ufakzeka", PreTokenizer((_QWEN2.removeprefix(f"{_ENDINGS}|"),))),
)
PRE_TOKENIZERS = {name: row for names, row in _TABLE for name in names.split()}
