# SPDX-License-Identifier: Apache-2.0
"""Schemas read from declarations, and the C++ that is made of them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from rtp_llm.ops import generate, schema
from rtp_llm.ops.schema import OPERATORS, DeclarationError, OperatorEntry


def schema_of(text: str) -> str:
    (node,) = ast.parse(text).body
    assert isinstance(node, ast.FunctionDef)
    return schema.schema_of(node)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("def f(x: Tensor) -> Tensor: ...", "f(Tensor x) -> Tensor"),
        (
            "def f(x: MutableTensor, y: MutableTensor | None, z: Tensor | None = None)"
            " -> None: ...",
            "f(Tensor(a!) x, Tensor(b!)? y, Tensor? z=None) -> ()",
        ),
        (
            "def f(x: Tensor, *, n: int = -1, eps: float = 1e-6, s: str, b: bool = True,"
            " o: bool | None = None) -> tuple[Tensor, Tensor]: ...",
            "f(Tensor x, int n=-1, float eps=1e-06, str s, bool b=True, bool? o=None)"
            " -> (Tensor, Tensor)",
        ),
        ("def f(weight: Tensor) -> int: ...", "f(Tensor weight) -> int"),
    ],
)
def test_schema_of_a_function(text: str, expected: str) -> None:
    assert schema_of(text) == expected


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("def f(x) -> Tensor: ...", "x is without a type"),
        ("def f(x: list[int]) -> Tensor: ...", r"x is list\[int\]; expected Tensor, "),
        ("def f(x: Tensor): ...", "returns nothing said"),
        ("def f(x: Tensor) -> float: ...", "returns float"),
        ("def f(*x: Tensor) -> Tensor: ...", "no \\*args"),
    ],
)
def test_refused(text: str, complaint: str) -> None:
    with pytest.raises(DeclarationError, match=complaint):
        schema_of(text)


def test_declarations_say_where_they_are(tmp_path: Path) -> None:
    path = tmp_path / "norm" / "soft.py"
    path.parent.mkdir()
    path.write_text(
        "@operator(composite=True, dispatch=helper)\ndef f(x: Tensor) -> Tensor: ...\n"
        "def helper(x: int) -> int: ...\n"
    )
    (path.parent / "soft_reference.py").write_text("@operator\ndef g(x) -> Tensor: ...\n")
    (entry,) = schema.declarations(tmp_path)
    assert (entry.module, entry.optional, entry.composite) == ("norm.soft", True, True)
    assert entry.meta == "rtp_llm.ops.norm.soft:f.meta"
    path.write_text("\n@operator\ndef f(x: list) -> Tensor: ...\n")
    with pytest.raises(DeclarationError, match=r"soft.py:3: f: x is list; expected"):
        list(schema.declarations(tmp_path))


def test_a_struct_takes_the_stack_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = OperatorEntry("f(Tensor(a!)? y, Tensor x, float eps=1.0) -> (Tensor, Tensor)", "soft.f")
    monkeypatch.setattr(generate, "OPERATORS", {"f": entry})
    text = generate.calls("soft")
    for line in (
        "struct FCall {",
        'kName = "f"',
        "kArguments = 3;",
        "using Result = std::tuple<Tensor, Tensor>;",
        "OptionalTensor y;",
        "eps(take<double>(stack[2]))",
        "check(y);",
        "first_tensor() const { return x; }",
    ):
        assert line in text
    with pytest.raises(KeyError, match="rtp_llm/ops/hard"):
        generate.calls("hard")


def test_every_schema_has_a_struct() -> None:
    for entry in OPERATORS.values():
        call = generate.call_of(entry)
        assert len(call.parameters) == entry.schema.partition(" -> ")[0].count(",") + 1
    with pytest.raises(KeyError, match="glue does not know"):
        generate.call_of(OperatorEntry("f(int[] x) -> Tensor", "a.a"))


def test_schemas_are_those_of_the_table() -> None:
    lines = [line.strip(' ",') for line in generate.schemas().splitlines() if " -> " in line]
    assert lines == schema.native_schemas()
    assert not any(line.startswith("triton_") for line in lines)


@pytest.mark.parametrize(
    ("device", "mark", "expected"),
    [
        ("cuda", "rms_norm", "  rms_norm(prepared.args, device.stream());"),
        ("cpu", "rms_norm, args.rows, f(1, 2)", "prepared.args, args.rows, f(1, 2));"),
        ("xpu", "rms_norm, args.rows,\n   g(3)", '{"a_kernel", entry("rms_norm", args.dtype), '),
        ("cpu", "rms_norm", "  rms_norm(prepared.args, glue::parallel_for());"),
        (
            "cpu",
            "rms_norm, scratch",
            "scratch(call.first_tensor(), rms_norm_scratch(args, parallel.num_threads()));",
        ),
        ("cpu", "rms_norm, scratch", "  rms_norm(prepared.args, scratch.data(), parallel);"),
        (
            "cuda",
            "rms_norm, scratch",
            "glue::Scratch scratch(call.first_tensor(), rms_norm_scratch(args));",
        ),
        (
            "cuda",
            "rms_norm, scratch",
            "  rms_norm(prepared.args, scratch.data(), device.stream());",
        ),
        ("xpu", "rms_norm", "  rms_norm(device.queue(), prepared.args);"),
        ("xpu", "rms_norm, scratch", "  rms_norm(device.queue(), prepared.args, scratch.data());"),
    ],
)
def test_glue_of_a_marked_kernel(tmp_path: Path, device: str, mark: str, expected: str) -> None:
    source = tmp_path / "a_kernel.cc"
    source.write_text(f"// kernel\nRTP_LLM_OPERATOR({mark})\nvoid rms_norm() {{}}\n")
    text = generate.glue(device, [source])
    assert expected in text
    assert "Prepared<RmsNormArgs, Tensor> prepare(const RmsNormCall& call);" in text
    assert "glue::implement<&call_rms_norm>(library);" in text
    assert '#include "rtp_llm/kernels/common/norm/norm.h"' in text
    assert text.count("{") == text.count("}")


def test_a_source_for_every_instruction_set_or_for_none(tmp_path: Path) -> None:
    for name, expected in (("a_kernel.cc", "RTP_LLM_PICK_ISA(rms_norm)"), ("a.cc", "&rms_norm, ")):
        (tmp_path / name).write_text("\nRTP_LLM_OPERATOR(rms_norm, args.rows, 1)\n")
        assert f"glue::run({expected}" in generate.glue("cpu", [tmp_path / name])


def test_only_the_cpu_looks_into_index_tensors(tmp_path: Path) -> None:
    source = tmp_path / "a.cc"
    source.write_text("\nRTP_LLM_OPERATOR(embedding)\n")
    assert "  glue::check_indices(args);\n  embedding(" in generate.glue("cpu", [source])
    assert "check_indices" not in generate.glue("cuda", [source])
    source.write_text("\nRTP_LLM_OPERATOR(rms_norm)\n")
    assert "check_indices" not in generate.glue("cpu", [source])


@pytest.mark.parametrize(
    ("device", "said"), [("cuda", "args.rows, 1"), ("cpu", "stretch"), ("xpu", "a, b, c")]
)
def test_forms_that_a_device_does_not_know_are_refused(
    tmp_path: Path, device: str, said: str
) -> None:
    source = tmp_path / "a.cc"
    source.write_text(f"\nRTP_LLM_OPERATOR(rms_norm, {said})\n")
    with pytest.raises(ValueError, match=f"rms_norm, .* in a: not a form of {device} kernels"):
        generate.glue(device, [source])


def test_marks_of_nothing_known_are_refused(tmp_path: Path) -> None:
    source = tmp_path / "a.cu"
    source.write_text("\nRTP_LLM_OPERATOR(rms_morn)\n")
    with pytest.raises(KeyError, match="rms_morn"):
        generate.glue("cuda", [source])
    source.write_text("// RTP_LLM_OPERATOR(rms_norm)\n")
    with pytest.raises(ValueError, match="no RTP_LLM_OPERATOR"):
        generate.glue("cuda", [source])


def test_main_writes_the_file(tmp_path: Path) -> None:
    out = tmp_path / "calls.h"
    generate.main(["calls", str(out), "norm"])
    assert out.read_text() == generate.calls("norm")
