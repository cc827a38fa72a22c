# SPDX-License-Identifier: Apache-2.0
"""`@operator`: a typed function declares an operator of torch.ops.rtp_llm.

    @operator
    def fused_add_rms_norm(
        x: MutableTensor, residual: MutableTensor, weight: Tensor, eps: float
    ) -> None:
        \"\"\"What it does, shapes, dtypes, errors.\"\"\"

Its parameters are written here and nowhere else: the schema, the C++ struct that kernels receive
and the glue that fills it are generated from them (generate.py). The body is the Meta function: it
returns results of the right shape and dtype without data; operators that only write in place have
none. A call runs the operator. Options: `optional` (a device may lack a kernel: layers ask
has_kernel), `composite` (optional, and without a kernel the plain PyTorch reference runs, without
permission), `dispatch` (a function of the operator and the arguments by name, in order, that runs
instead: it calls `operator.call(*arguments.values())`, or a library), `triton`
("family.file:function" in rtp_llm/kernels/triton, its kernel on CUDA with the same parameters; see
triton.py).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import update_wrapper
from typing import Any, TypeAlias, TypeVar, overload

from torch import Tensor

from rtp_llm.ops.registry import Operator
from rtp_llm.ops.registry import operator as operator_of

F = TypeVar("F", bound=Callable[..., Any])
Dispatch: TypeAlias = Callable[[Operator, dict[str, Any]], Any]

# A tensor that the operator writes to.
MutableTensor: TypeAlias = Tensor

# A tensor with numbers of rows, slots or blocks of another one. The CPU checks them before a kernel
# runs (check_indices of the family's checks); other devices leave out what lies outside.
IndexTensor: TypeAlias = Tensor


@overload
def operator(function: F) -> F: ...


@overload
def operator(
    *,
    optional: bool = False,
    composite: bool = False,
    dispatch: Dispatch | None = None,
    triton: str = "",
) -> Callable[[F], F]: ...


def operator(
    function: F | None = None,
    *,
    optional: bool = False,
    composite: bool = False,
    dispatch: Dispatch | None = None,
    triton: str = "",
) -> F | Callable[[F], F]:
    """See above. The table of rtp_llm.ops.schema knows the other options from the text."""
    if function is None:
        return lambda function: _calling(function, dispatch)
    return _calling(function, dispatch)


def _calling(function: F, dispatch: Dispatch | None) -> F:
    """A function with the parameters of `function` that calls its operator, all by position.

    Made from text: `*args` would cost each call 0.2 us. Its `meta` is `function` as the dispatcher
    calls it, by position too.
    """
    name, parameters = function.__name__, inspect.signature(function).parameters.values()
    given = ", ".join(each.name for each in parameters)
    named = ", ".join(
        f"{each.name}={each.name}" if each.kind is each.KEYWORD_ONLY else each.name
        for each in parameters
    )
    scope: dict[str, Any] = {
        "_operator": operator_of(name),
        "_dispatch": dispatch,
        "_body": function,
    }
    by_name = ", ".join(f"{each.name!r}: {each.name}" for each in parameters)
    run = f"_dispatch(_operator, {{{by_name}}})" if dispatch else f"_operator.call({given})"
    exec(f"def {name}({_header(function)}):\n    return {run}", scope)
    exec(f"def meta({given}):\n    return _body({named})", scope)
    call: Any = update_wrapper(scope[name], function)
    call.__defaults__, call.__kwdefaults__ = function.__defaults__, function.__kwdefaults__
    # The dispatcher leaves out arguments that equal their defaults.
    scope["meta"].__defaults__ = tuple(
        None if each.default is each.empty else each.default for each in parameters
    )
    call.meta = scope["meta"]
    return call  # type: ignore[no-any-return]


def _header(function: Callable[..., Any]) -> str:
    parameters = inspect.signature(function).parameters.values()
    names = [each.name for each in parameters]
    keywords = [each.kind is inspect.Parameter.KEYWORD_ONLY for each in parameters]
    if any(keywords):
        names.insert(keywords.index(True), "*")
    return ", ".join(names)
