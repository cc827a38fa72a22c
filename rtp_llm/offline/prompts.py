# SPDX-License-Identifier: Apache-2.0
"""The forms in which offline generation takes its prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Prompt: TypeAlias = "str | Sequence[int] | NDArray[np.integer[Any]] | Mapping[str, Any]"
_SHOWN = 40  # characters of a prompt in an error
_EXPECTED = (
    'expected a text, token ids, {"prompt": text}, {"prompt_token_ids": token ids} or a list of '
    "those"
)
_KEYS = frozenset({"prompt", "prompt_token_ids", "cache_salt"})
_MULTIMODAL = frozenset({"multi_modal_data", "mm_processor_kwargs", "multi_modal_uuids"})


class PlainPrompt(msgspec.Struct, frozen=True):
    """One prompt: its text, its token ids, or both (then the ids count).

    Prompts share cached blocks only within the same ``cache_salt``.
    """

    text: str | None
    token_ids: list[int] | None
    cache_salt: str = ""


def list_prompts(prompts: Prompt | Sequence[Prompt]) -> list[PlainPrompt]:
    """One or several prompts as a list: a vector of integers is one prompt, a matrix one per row.

    Raises TypeError for anything else, ValueError for images and the like.
    """
    given: Any = _plain(prompts)
    if isinstance(given, str | Mapping) or (
        _is_list(given) and given and _is_integer(type(given[0]))
    ):
        return [plain_prompt(given)]
    if not _is_list(given):
        raise TypeError(f"prompts is a {type(given).__name__}; {_EXPECTED}")
    return [plain_prompt(prompt) for prompt in given]


def plain_prompt(prompt: object) -> PlainPrompt:
    """One prompt in any of its forms; raises as ``list_prompts``."""
    if isinstance(prompt, str):
        return PlainPrompt(prompt, None)
    if not isinstance(prompt, Mapping):
        return PlainPrompt(None, token_ids(prompt))
    given = {key: value for key, value in prompt.items() if value is not None}
    unknown = given.keys() - _KEYS
    if unknown & _MULTIMODAL:
        raise ValueError(f"{min(unknown & _MULTIMODAL)} is not supported: only text is understood")
    text, ids, salt = (given.get(key) for key in ("prompt", "prompt_token_ids", "cache_salt"))
    if unknown or (text is None and ids is None):
        raise TypeError(f"a prompt with the keys {sorted(map(str, prompt))}; {_EXPECTED}")
    if not isinstance(text, str | None) or not isinstance(salt, str | None):
        raise TypeError(f"{shorten(prompt)}: prompt and cache_salt must be texts")
    return PlainPrompt(text, None if ids is None else token_ids(ids), salt or "")


def token_ids(prompt: object) -> list[int]:
    """The ids of a prompt that is not text; raises TypeError if they are not integers."""
    ids: Any = _plain(prompt)
    # By type, not by token: asking an abstract class about 100,000 tokens takes 100 ms.
    kinds = set(map(type, ids)) if _is_list(ids) else {object}
    if kinds == {int}:
        return list(ids)
    if not all(map(_is_integer, kinds)):
        raise TypeError(f"{shorten(ids)} is neither a text nor a list of token ids")
    return list(map(int, ids))


def _is_integer(kind: type) -> bool:
    """Whether it is a type of integers, but not of booleans, which are integers in Python too."""
    return issubclass(kind, Integral) and not issubclass(kind, bool)


def shorten(prompt: object) -> str:
    """A prompt as errors show it."""
    text = repr(prompt)
    return f"prompt {text}" if len(text) <= _SHOWN else f"prompt {text[:_SHOWN]}..."


def _plain(value: Any) -> Any:
    """Arrays and tensors as lists of plain Python numbers."""
    return value.tolist() if hasattr(value, "tolist") else value


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, bytes | bytearray | str)
