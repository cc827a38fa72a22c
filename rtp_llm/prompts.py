"""The forms in which offline generation takes its prompts."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Prompt: TypeAlias = "str | Sequence[int] | NDArray[np.integer[Any]]"
_SHOWN = 40  # characters of a prompt in an error


def list_prompts(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt or several as a list: a vector of integers is one, a matrix one for each row.

    Raises TypeError for what is neither.
    """
    given: Any = _plain(prompts)
    if isinstance(given, str) or (_is_list(given) and given and isinstance(given[0], Integral)):
        return [given]
    if not _is_list(given):
        raise TypeError(
            f"prompts is a {type(given).__name__}; expected a text, token ids or a list of those"
        )
    return list(given)


def token_ids(prompt: object) -> list[int]:
    """The ids of a prompt that is not text; raises TypeError when they are no integers."""
    ids: Any = _plain(prompt)
    if not _is_list(ids) or not all(isinstance(token, Integral) for token in ids):
        raise TypeError(f"{shorten(ids)} is neither a text nor a list of token ids")
    return [int(token) for token in ids]


def shorten(prompt: object) -> str:
    """A prompt as errors show it."""
    text = repr(prompt)
    return f"prompt {text}" if len(text) <= _SHOWN else f"prompt {text[:_SHOWN]}..."


def _plain(value: Any) -> Any:
    """Arrays and tensors as lists of Python's own numbers."""
    return value.tolist() if hasattr(value, "tolist") else value


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, bytes | bytearray | str)
