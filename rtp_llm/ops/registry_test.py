# SPDX-License-Identifier: Apache-2.0
"""Loading, the schema hash, instruction sets, and what happens where a kernel is missing."""

from __future__ import annotations

import inspect
import logging
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from rtp_llm import native, ops
from rtp_llm.ops import registry
from rtp_llm.ops.fallback import Fallbacks, function_of
from rtp_llm.ops.schema import OPERATORS, OperatorEntry, schema_hash
from rtp_llm.testing.operator_checks import ISAS, cpu_only

pytestmark = pytest.mark.usefixtures("on_the_cpu")

every_operator = pytest.mark.parametrize("entry", OPERATORS.values(), ids=lambda entry: entry.name)


def _run(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **variables}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


@every_operator
def test_operator_has_kernel_signature_reference_and_meta(entry: OperatorEntry) -> None:
    ops.load()
    assert ops.kernel_calls(entry.name) >= 0 or entry.optional
    declared = inspect.signature(getattr(ops, entry.name)).parameters
    schema = getattr(torch.ops.rtp_llm, entry.name).default._schema
    assert list(declared) == [argument.name for argument in schema.arguments]
    for target in (entry.reference, entry.meta):
        assert list(inspect.signature(function_of(target)).parameters) == list(declared)


def test_type_checkers_see_every_declaration() -> None:
    text = Path(ops.__file__).read_text()
    for module in {entry.module for entry in OPERATORS.values()}:
        assert f"    from rtp_llm.ops.{module} import *  # noqa: F403\n" in text, module


def test_no_module_hides_a_function_of_the_package() -> None:
    for module in pkgutil.iter_modules(ops.__path__):
        assert module.name not in dir(ops), f"import of the module {module.name} hides a function"


def test_importing_operators_loads_no_library() -> None:
    code = (
        "import sys, rtp_llm.ops as ops\n"
        "from rtp_llm.ops import rms_norm, rope_kv_write\n"
        "import torch\n"
        "assert not torch.ops.loaded_libraries\n"
    )
    done = _run(code, RTP_LLM_OPS_LIBRARY="/nowhere.so")
    assert done.returncode == 0, done.stderr


def test_unknown_names() -> None:
    with pytest.raises(AttributeError, match="no attribute 'rms_morn'"):
        ops.rms_morn  # noqa: B018
    with pytest.raises(KeyError, match=r"no operator 'rms_morn'; known: .*, rms_norm, "):
        registry.operator("rms_morn")
    assert ops.kernel_calls("rms_morn") == -1
    assert "rms_norm" in dir(ops)


def test_hash_changes_with_any_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    before = schema_hash()
    assert len(before) == 16
    monkeypatch.setitem(
        OPERATORS, "rms_norm", OperatorEntry("rms_norm(Tensor x) -> Tensor", "norm")
    )
    assert schema_hash() != before


def test_other_schemas_are_refused() -> None:
    code = (
        "from rtp_llm.ops import registry\n"
        "registry.schema_hash = lambda: '0123456789abcdef'\n"
        "registry.load()\n"
    )
    done = _run(code)
    assert "NativeLibraryError" in done.stderr
    assert f"(hash {schema_hash()}) than this package (0123456789abcdef)" in done.stderr


def test_a_file_that_is_no_library_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "lib.so"
    path.write_text("not a library")
    done = _run("from rtp_llm import ops; ops.load()", RTP_LLM_OPS_LIBRARY=str(path))
    assert "NativeLibraryError" in done.stderr
    assert f"{path} cannot be loaded" in done.stderr


@cpu_only
def test_forced_instruction_set_is_used_and_given_back() -> None:
    before = ops.cpu_isa()
    for isa in ISAS:
        with ops.forced_cpu_isa(isa):
            assert ops.cpu_isa() == isa
        assert ops.cpu_isa() == before
    assert ISAS[0] == "scalar"
    with pytest.raises(RuntimeError, match="'sse9'; expected scalar, avx2, avx512_base, avx512"):
        registry._native("cpu_isa")("sse9")
    assert ops.cpu_isa() == before


def test_instruction_set_from_the_environment() -> None:
    done = _run("from rtp_llm import ops; print(ops.cpu_isa())", RTP_LLM_CPU_ISA="scalar")
    assert done.stdout.strip() == "scalar", done.stderr
    done = _run("from rtp_llm import ops; ops.load()", RTP_LLM_CPU_ISA="sse9")
    assert "RTP_LLM_CPU_ISA is 'sse9'" in done.stderr


@pytest.fixture(scope="module")
def kernelless() -> OperatorEntry:
    """An operator with the schema of rms_norm in another namespace, without any kernel."""
    entry = OPERATORS["rms_norm"]
    library = torch.library.Library("rtp_llm_without_kernels", "DEF")
    library.define(entry.schema)
    globals()["_keep_alive"] = library
    return entry


def test_missing_kernel_is_an_error_until_references_are_allowed(
    kernelless: OperatorEntry, caplog: pytest.LogCaptureFixture
) -> None:
    fallbacks = Fallbacks("rtp_llm_without_kernels", [kernelless])
    x, weight = torch.randn(3, 8), torch.randn(8)

    def call() -> torch.Tensor:
        result: torch.Tensor = torch.ops.rtp_llm_without_kernels.rms_norm(x, weight, 1e-6)
        return result

    fallbacks.install(allow_references=False, native_library="lib.so")
    with pytest.raises(ops.MissingKernelError, match=r"rms_norm has no kernel for CPU in lib\.so"):
        call()

    fallbacks.install(allow_references=True, native_library="lib.so")
    with caplog.at_level(logging.WARNING):
        results = [call() for _ in range(3)]
    torch.testing.assert_close(results[2], ops.rms_norm(x, weight, 1e-6))
    assert [record.getMessage() for record in caplog.records] == [
        "operator rms_norm has no kernel for CPU: the PyTorch reference runs"
    ]

    fallbacks.install(allow_references=False, native_library="lib.so")
    with pytest.raises(ops.MissingKernelError):
        call()


def test_allowing_references_does_not_replace_kernels() -> None:
    x, weight = torch.randn(3, 8), torch.randn(8)
    ops.allow_reference_ops(True)
    try:
        before = ops.kernel_calls("rms_norm")
        ops.rms_norm(x, weight, 1e-6)
        assert ops.kernel_calls("rms_norm") == before + 1
    finally:
        ops.allow_reference_ops(False)


def test_tensors_of_other_devices_are_refused() -> None:
    with pytest.raises((RuntimeError, NotImplementedError)):
        ops.rms_norm(torch.randn(3, 8).to_sparse(), torch.randn(8), 1e-6)


def test_compiled_code_calls_the_kernels() -> None:
    weight = torch.randn(8)

    def layer(x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        ops.fused_add_rms_norm(x, residual, weight, 1e-6)
        return ops.silu_and_mul(x) + residual[:, :4]

    ops.load()
    arguments = torch.randn(3, 8), torch.randn(3, 8)
    expected = layer(*(value.clone() for value in arguments))
    before = ops.kernel_calls("fused_add_rms_norm")
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(*arguments), expected)
    assert ops.kernel_calls("fused_add_rms_norm") == before + 1


def test_library_path_is_the_one_that_was_found() -> None:
    assert ops.load() == str(native.ops_library_path())
