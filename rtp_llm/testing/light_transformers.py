# SPDX-License-Identifier: Apache-2.0
"""transformers without what it imports for training on many devices and for torch.compile."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pytest
import torch

_COMPILER = "torch._dynamo"
_MASKS = f"{_COMPILER}._trace_wrapped_higher_order_op"
_DISTRIBUTED = "torch.distributed.tensor"


@contextmanager
def light_transformers() -> Iterator[None]:
    """Context in which transformers models are imported or saved without either, or sympy.

    Small models in eager mode use neither, and both would cost every test process 7 s of CPU time.
    Once loaded, they stay. torchvision, which transformers imports if available, needs the
    compiler.
    """
    if importlib.util.find_spec("torchvision") is not None:
        yield
        return
    with pytest.MonkeyPatch.context() as patched:
        if _DISTRIBUTED not in sys.modules:
            patched.setitem(sys.modules, _DISTRIBUTED, None)
            patched.setattr(torch.distributed, "is_available", lambda: False)
            _forget_whether_distributed()
        if _COMPILER not in sys.modules:
            names = ("allow_in_graph", "assume_constant_result", "disable")
            _stand_in(patched, _COMPILER, __path__=[], **dict.fromkeys(names, _undecorated))
            _stand_in(patched, _MASKS, TransformGetItemToIndex=_transform_get_item)
        yield


def _stand_in(patched: pytest.MonkeyPatch, name: str, **contents: Any) -> None:
    module = ModuleType(name)
    vars(module).update(contents)
    patched.setitem(sys.modules, name, module)


def _undecorated(function: Callable[..., Any] | None = None, *_options: Any, **_named: Any) -> Any:
    """What the compiler's decorators are for a program that compiles nothing."""
    return function or (lambda decorated: decorated)


def _transform_get_item() -> Any:
    """The compiler's own, for masks that are made with vmap."""
    return importlib.import_module(_MASKS).TransformGetItemToIndex()


def _forget_whether_distributed() -> None:
    """Clear the cached answer of transformers' first query."""
    importlib.import_module(
        "transformers.utils.import_utils"
    ).is_torch_distributed_available.cache_clear()
