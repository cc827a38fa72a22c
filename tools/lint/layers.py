# SPDX-License-Identifier: Apache-2.0
"""Imports only go downwards; devices and torch are named only where the design allows it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tools.lint import sources

PACKAGE = "rtp_llm"

# Folder or module of the package -> the folders that it may import.
MAY_IMPORT: dict[str, frozenset[str]] = {
    folder: frozenset(below.split())
    for folder, below in {
        "__init__": "interrupts llm offline request",
        "__main__": "cli interrupts",
        "cli": "commands config interrupts",
        "commands": "bench cluster router server chat client llm engine text loader models "
        "attention ops device config bound_child interrupts request terminal",
        "bench": "client llm text config offline request terminal",
        "chat": "client config bound_child",
        "client": "net",
        "cluster": "router server distributed config bound_child",
        "router": "server config interrupts net",
        "server": "text engine config bound_child gguf interrupts request",
        "llm": "vllm_arguments offline text engine worker config interrupts request terminal",
        "offline": "text engine worker request terminal",
        "text": "gguf model_folder request",
        "disagg": "engine worker loader models attention distributed device native config "
        "gguf request net _runtime",
        "engine": "text worker loader models layers distributed ops device native config "
        "model_folder bound_child gguf interrupts request _runtime",
        "worker": "loader models distributed attention ops device config bound_child interrupts "
        "request terminal _runtime native",
        "loader": "models layers attention quantization distributed ops device config gguf "
        "model_folder terminal",
        "models": "layers attention distributed ops device config gguf model_folder",
        "layers": "attention quantization distributed ops device config gguf",
        "attention": "ops device config",
        "kernels": "",
        "quantization": "ops",
        "distributed": "ops device",
        "compat": "ops",
        "ops": "native",
        "bound_child": "",
        "interrupts": "",
        "native": "device _runtime",
        "device": "",
        "config": "",
        "gguf": "model_folder",
        "model_folder": "",
        "net": "",
        "request": "config",
        "terminal": "",
        "vllm_arguments": "config",
        "testing": "",  # for tests alone
        "_runtime": "",
    }.items()
}
# Test files are not part of the package and may import whatever they test.
OF_TESTS = ("_test.py", "_for_tests.py")
TESTING = "rtp_llm/testing/"
# The server talks to the engine through its client; the rest runs in another process.
ENGINE_API = {
    f"rtp_llm.engine.{module}"
    for module in (
        "client.engine_client",
        "client.restarts",
        "messages",
        "profile_messages",
        "ranks.member",
    )
}
# Besides the device classes: tests of a device's kernels, and the names in this table.
DEVICE_FOLDERS = ("rtp_llm/device/", "rtp_llm/kernels/", "rtp_llm/testing/", "tools/lint/")
DEVICE_MODULES = ("torch.cuda", "torch.xpu", "torch.hip", "torch.accelerator")
DEVICE_VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "ZE_AFFINITY_MASK",
)
TORCH_IN_CPP = re.compile(r'#include\s+[<"](?:torch|ATen|c10)/')
MAY_INCLUDE_TORCH = re.compile(r"rtp_llm/cpp/pybind/")
PIP_LOAD = re.compile(r'load\("@pip_')


def check(root: Path) -> list[str]:
    """Return complaints about the tree at `root`; empty when all rules are kept."""
    complaints: list[str] = []
    for path in sources.python(root):
        complaints += of_python(path.relative_to(root).as_posix(), path.read_text())
    for path in sources.cpp(root):
        complaints += of_cpp(path.relative_to(root).as_posix(), path.read_text())
    for path in sources.starlark(root):
        complaints += of_starlark(path.relative_to(root).as_posix(), path.read_text())
    return complaints


def of_python(path: str, text: str) -> Iterator[str]:
    """Complaints about one Python file."""
    tree = ast.parse(text, path)
    folder = folder_of(path)
    for line, module in imports(tree):
        if module.startswith(f"{PACKAGE}.") and folder and not _is_of_tests(path):
            yield from _import(path, line, folder, module)
    if not path.startswith(DEVICE_FOLDERS):
        for line, module in _device_uses(tree):
            yield f"{path}:{line}: {module} outside rtp_llm/device; ask the device class instead"


def _is_of_tests(path: str) -> bool:
    return path.endswith(OF_TESTS) or path.startswith(TESTING)


def of_cpp(path: str, text: str) -> Iterator[str]:
    """Complaints about one C++ file: the runtime must not use torch."""
    if path.startswith("rtp_llm/cpp/") and not MAY_INCLUDE_TORCH.match(path):
        for number, line in enumerate(text.splitlines(), 1):
            if TORCH_IN_CPP.match(line):
                yield f"{path}:{number}: a torch header in the runtime"


def of_starlark(path: str, text: str) -> Iterator[str]:
    """Complaints about one Bazel file: a load() would fetch a device's packages in every build."""
    for number, line in enumerate(text.splitlines(), 1):
        if PIP_LOAD.match(line):
            yield f"{path}:{number}: load() from a device's packages; use a label of //deps"


def folder_of(path: str) -> str | None:
    """Room that a file belongs to: rtp_llm/ops/norm/norm.py is in ops, rtp_llm/cli.py in cli."""
    parts = path.split("/")
    if parts[0] != PACKAGE or len(parts) < 2:
        return None
    return parts[1].removesuffix(".py")


def imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, module) of every import; `from rtp_llm import ops` counts as rtp_llm.ops."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            if node.module == PACKAGE:
                yield from ((node.lineno, f"{PACKAGE}.{alias.name}") for alias in node.names)
            else:
                yield node.lineno, node.module


def _import(path: str, line: int, folder: str, module: str) -> Iterator[str]:
    target = module.split(".")[1]
    if folder not in MAY_IMPORT:
        yield f"{path}:{line}: folder {folder!r} is not in the table of tools/lint/layers.py"
    elif target not in MAY_IMPORT and target != "kernels":
        return  # a name of the package itself, such as __version__
    elif target != folder and target not in MAY_IMPORT[folder]:
        yield f"{path}:{line}: {folder} imports {module}, which is not below it"
    elif (folder, target) == ("server", "engine") and module not in ENGINE_API:
        yield f"{path}:{line}: the server reaches into the engine ({module})"


def _device_uses(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, name) of every vendor's module of torch or environment variable, also in texts."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(ast.Name(owner), name) if f"{owner}.{name}" in DEVICE_MODULES:
                yield node.lineno, f"{owner}.{name}"
            case ast.Call(
                ast.Name("getattr" | "hasattr"), [ast.Name(owner), ast.Constant(str(name)), *_]
            ):
                if f"{owner}.{name}" in DEVICE_MODULES:
                    yield node.lineno, f"{owner}.{name}"
            case ast.Constant(str(text)):
                yield from ((node.lineno, name) for name in DEVICE_VARIABLES if name in text)
    for line, module in imports(tree):
        if module.startswith(DEVICE_MODULES):
            yield line, module
