# SPDX-License-Identifier: Apache-2.0
"""The table of operators, read from their declarations; nothing here imports torch.

A declaration is a typed function in rtp_llm/ops/<family>/<file>.py under `@operator`; declare.py
says what the decorator makes of it. Its text is read here, so that a build can make the C++ half of
operators (generate.py) and the package its table of names without importing what it declares.

T tokens, H query heads, Hk KV heads, D head size, B sequences, N blocks, S block size,
V vocabulary, R sampled rows. Index tensors are int32 unless said.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
# Of annotations in declarations; all but MutableTensor may have `| None`.
_TYPES = ("Tensor", "MutableTensor", "IndexTensor", "bool", "float", "int", "str")


class DeclarationError(ValueError):
    """A declaration that no schema can be made of; the message names file and line."""


@dataclass(frozen=True)
class OperatorEntry:
    """One operator: `module` ("family.file") declares it, `module`_reference holds its reference.

    A family never has the name of an operator: importing it would hide the function of the package.
    """

    schema: str
    module: str
    optional: bool = False  # a device may lack it: layers ask has_kernel() for another way
    composite: bool = False  # without a kernel its PyTorch reference runs, without permission
    triton: str = ""  # "family.file:function" in rtp_llm/kernels/triton: it has no native kernel
    has_indices: bool = False  # some of its parameters are IndexTensor

    @property
    def name(self) -> str:
        """The operator's name in torch.ops.rtp_llm."""
        return self.schema.partition("(")[0]

    @property
    def reference(self) -> str:
        """ "module:function" of the plain PyTorch reference."""
        return f"rtp_llm.ops.{self.module}_reference:{self.name}_reference"

    @property
    def meta(self) -> str:
        """ "module:function" that gives results of the right shape and dtype without data."""
        return f"rtp_llm.ops.{self.module}:{self.name}.meta"


def declarations(folder: Path) -> Iterator[OperatorEntry]:
    """Every `@operator` below `folder`, by file and line. Raises DeclarationError."""
    for path in sorted(folder.glob("*/*.py")):
        if path.name.endswith(("_reference.py", "_test.py")):
            continue
        text = path.read_text()
        if "@operator" in text:
            module = f"{path.parent.name}.{path.stem}"
            for node in ast.parse(text, str(path)).body:
                if isinstance(node, ast.FunctionDef):
                    yield from _declared(node, module, path)


def _declared(node: ast.FunctionDef, module: str, path: Path) -> Iterator[OperatorEntry]:
    for decorator in node.decorator_list:
        name = decorator.func if isinstance(decorator, ast.Call) else decorator
        if isinstance(name, ast.Name) and name.id == "operator":
            options = decorator.keywords if isinstance(decorator, ast.Call) else []
            given = {
                option.arg: ast.literal_eval(option.value)
                for option in options
                if option.arg in ("optional", "composite", "triton")
            }
            composite, triton = given.get("composite", False), given.get("triton", "")
            optional = given.get("optional", False) or composite or triton != ""
            try:
                schema, indices = schema_of(node), _has_indices(node)
                yield OperatorEntry(schema, module, optional, composite, triton, indices)
            except DeclarationError as error:
                raise DeclarationError(f"{path}:{node.lineno}: {node.name}: {error}") from None


def schema_of(node: ast.FunctionDef) -> str:
    """The schema of a typed function. Raises DeclarationError."""
    if node.args.vararg or node.args.kwarg:
        raise DeclarationError("an operator has no *args or **kwargs")
    positional = [*node.args.posonlyargs, *node.args.args]
    missing = [None] * (len(positional) - len(node.args.defaults))
    named = zip(
        [*positional, *node.args.kwonlyargs],
        [*missing, *node.args.defaults, *node.args.kw_defaults],
        strict=True,
    )
    letters = iter("abcdefghijklmnop")
    parameters = [
        f"{_type_of(argument, letters)} {argument.arg}" + ("" if value is None else _default(value))
        for argument, value in named
    ]
    return f"{node.name}({', '.join(parameters)}) -> {_result_of(node.returns)}"


def _has_indices(node: ast.FunctionDef) -> bool:
    arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    return any(
        each.annotation is not None and "IndexTensor" in ast.unparse(each.annotation)
        for each in arguments
    )


def _default(value: ast.expr) -> str:
    return f"={ast.literal_eval(value)!r}"


def _type_of(argument: ast.arg, letters: Iterator[str]) -> str:
    text = "" if argument.annotation is None else ast.unparse(argument.annotation)
    base = text.removesuffix(" | None")
    if base not in _TYPES:
        raise DeclarationError(
            f"{argument.arg} is {text or 'without a type'}; expected {', '.join(_TYPES)}"
        )
    if base == "MutableTensor":
        base = f"Tensor({next(letters)}!)"
    if base == "IndexTensor":
        base = "Tensor"
    return base + ("?" if text.endswith(" | None") else "")


def _result_of(returns: ast.expr | None) -> str:
    text = "" if returns is None else ast.unparse(returns)
    if text == "None":
        return "()"
    parts = text.removeprefix("tuple[").removesuffix("]").split(", ")
    if not set(parts) <= {"Tensor", "int"}:
        raise DeclarationError(
            f"it returns {text or 'nothing said'}; expected tensors, int or None"
        )
    return f"({', '.join(parts)})" if text.startswith("tuple[") else text


OPERATORS: dict[str, OperatorEntry] = {entry.name: entry for entry in declarations(FOLDER)}


def native_schemas() -> list[str]:
    """What the operator library registers, sorted: all but the kernels in Triton."""
    return sorted(entry.schema for entry in OPERATORS.values() if not entry.triton)


def schema_hash() -> str:
    """64-bit FNV-1a of native_schemas(), each and a newline; 16 hexadecimal digits."""
    value = 0xCBF29CE484222325
    for schema in native_schemas():
        for byte in f"{schema}\n".encode():
            value = (value ^ byte) * 0x100000001B3 % 2**64
    return f"{value:016x}"
