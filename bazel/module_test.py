# SPDX-License-Identifier: Apache-2.0
"""MODULE.bazel for Bazel 8 and 9, which are not run here: nothing uses what they removed.

The lists follow the release notes of Bazel 8.0 and 9.0.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from bazel.nested_for_tests import source_tree

ROOT = source_tree()
# Read only by WORKSPACE builds.
_WORKSPACE_ONLY = ("3rdparty/bazel4/", "3rdparty/cc_rules/native/", "3rdparty/rules_python/")
_FILES = ("BUILD", "*.bzl", "*.BUILD.tpl", "BUILD.external")

# Rules and providers that are no longer built in: a file that names one has to load it.
_MOVED = re.compile(
    r"(?<![\w.\"/:@-])(?<!def )(?:native\.)?"
    r"((?:cc|py|java|sh|objc|proto)_\w+(?=\()|cc_common|java_common|CcInfo|CcToolchainConfigInfo"
    r"|PyInfo|PyRuntimeInfo|JavaInfo|ProtoInfo)\b(?!\s*=[^=])"
)
# Files that Bazel 8 or 9 no longer embed, or that only forward and warn.
_MOVED_FILES = (
    "@bazel_tools//tools/build_defs/cc:action_names.bzl",
    "@bazel_tools//tools/cpp:cc_toolchain_config_lib.bzl",
    "@bazel_tools//tools/cpp:toolchain_utils.bzl",
    "@bazel_tools//tools/python:toolchain.bzl",
    "@bazel_tools//tools/python:srcs_version.bzl",
)
# Of rules and of the Starlark interface.
_REMOVED = re.compile(
    r"\bnative\.(?:local_repository|new_local_repository|bind|cc_shared_library)\b"
    r"|\bcfg = \"host\"|\bsrcs_version\b|\bincompatible_use_toolchain_transition\b"
    r"|\blegacy_create_init = (?:True|False)|\bDATA_CFG\b|\bHOST_CFG\b|\bctx\.expand(?!_)\b"
)
_REMOVED_FLAGS = (
    "--crosstool_top",
    "--host_crosstool_top",
    "--apple_crosstool_top",
    "--experimental_repository_cache_hardlinks",
    "--incompatible_load_",
    "--distinct_host_configuration",
    "--javacopt_host",
    "--noenable_bzlmod",
)
_GENERATED = re.compile(r"rctx\.file\(\"BUILD\.bazel\", \"\"\"\\?\n(.*?)\"\"\"", re.DOTALL)
_LOAD = re.compile(r"\bload\(\s*\"([^\"]+)\"((?:[^()]|\([^)]*\))*)\)")
_STRING = re.compile(r"\"\"\".*?\"\"\"|\"(?:\\.|[^\"\\\n])*\"|#[^\n]*", re.DOTALL)


def _sources() -> Iterator[Path]:
    for folder in ("3rdparty", "arch_config", "bazel", "benchmark", "deps", "docs", "example"):
        for pattern in _FILES:
            yield from (ROOT / folder).rglob(pattern)
    for folder in ("rtp_llm", "tools"):
        for pattern in _FILES:
            yield from (p for p in (ROOT / folder).rglob(pattern) if "node_modules" not in p.parts)
    yield ROOT / "BUILD"


SOURCES = sorted(
    path
    for path in set(_sources())
    if not path.relative_to(ROOT).as_posix().startswith(_WORKSPACE_ONLY)
)


def complaints(text: str) -> list[str]:
    """Return what Bazel 8 or 9 would refuse in a BUILD or .bzl file."""
    found = [f"load of {file}" for file, _ in _LOAD.findall(text) if file in _MOVED_FILES]
    loaded = {name for _, names in _LOAD.findall(text) for name in re.findall(r"\"(\w+)\"", names)}
    loaded |= {name for _, names in _LOAD.findall(text) for name in re.findall(r"(\w+) =", names)}
    code = _STRING.sub('""', _LOAD.sub("", text))
    found += [f"{name} is not loaded" for name in set(_MOVED.findall(code)) - loaded]
    return found + [f"removed: {match[0]}" for match in _REMOVED.finditer(_LOAD.sub("", text))]


def test_the_check_sees_what_was_removed() -> None:
    assert complaints('cc_library(\n    name = "x",\n)\n') == ["cc_library is not loaded"]
    assert complaints("def f():\n    native.cc_test(name = 1)\n") == ["cc_test is not loaded"]
    assert complaints("x = dep[CcInfo]\n") == ["CcInfo is not loaded"]
    assert complaints("cc_common.merge_cc_infos()\n") == ["cc_common is not loaded"]
    (old,) = complaints('load("@bazel_tools//tools/python:toolchain.bzl", "py_runtime_pair")\n')
    assert old.startswith("load of @bazel_tools")
    assert complaints('py_library(name = "x")\n') == ["py_library is not loaded"]
    assert complaints('f(cfg = "host")\n') == ['removed: cfg = "host"']
    assert complaints('load("@cc_rules//:defs.bzl", "cc_test")\ncc_test(name = "a")\n') == []
    assert complaints('"""CcInfo of the headers"""\n# cc_library(srcs)\n') == []


def test_there_are_sources() -> None:
    assert len(SOURCES) > 60


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_nothing_that_was_removed_is_used(path: Path) -> None:
    assert complaints(path.read_text()) == []


def test_generated_build_files_load_what_they_use() -> None:
    """BUILD files that repository rules write from strings."""
    for path in SOURCES:
        for text in _GENERATED.findall(path.read_text()):
            assert complaints(text) == [], path


def test_module_and_workspace_have_the_same_repositories() -> None:
    module, workspace = ((ROOT / name).read_text() for name in ("MODULE.bazel", "WORKSPACE"))
    table = (ROOT / "arch_config/devices.bzl").read_text()
    devices = re.findall(r"^    \"(\w+)\": struct", table, re.MULTILINE)
    gpus = re.findall(r"name = \"(\w+)\"", (ROOT / "3rdparty/gpus/repositories.bzl").read_text())
    made = {f"pip_{name}{end}" for name in devices for end in ("", "_venv")} | set(gpus)
    (used,) = re.findall(r"use_repo\(\s*devices,(.*?)\)", module, re.DOTALL)
    assert set(re.findall(r"\"(\w+)\"", used)) == made
    named = set(re.findall(r"name = \"(\w+)\"", workspace)) - {"rtp_llm_root"}
    assert named == {"cc_rules", "rules_python", "local_python", "host_tools", "googletest"}
    for name in named:
        assert f'"{name}"' in module


def test_an_extension_loads_nothing_that_it_makes() -> None:
    """The interpreter's repository is loaded by the rules of the others: two extensions."""
    host = (ROOT / "bazel/extensions.bzl").read_text()
    loaded = [file for file, _ in _LOAD.findall(host)]
    for file in loaded:
        path = ROOT / file.removeprefix("//").replace(":", "/")
        code = path.read_text()[: path.read_text().index("\ndef ")]  # not the BUILD file in it
        assert not [inner for inner, _ in _LOAD.findall(code) if inner.startswith("@")]


def test_both_faces_of_the_cc_rules_have_the_same_names() -> None:
    for file in ("defs.bzl", "toolchain.bzl"):
        native, module = (
            set(re.findall(r"^(?:def )?([A-Za-z]\w+)(?: = |\()", text, re.MULTILINE)) - {"load"}
            for text in (
                (ROOT / f"3rdparty/cc_rules/{face}" / file).read_text()
                for face in ("native", "module")
            )
        )
        assert native == module


def test_bazelrc_has_no_flag_that_was_removed() -> None:
    for line in (ROOT / ".bazelrc").read_text().splitlines():
        assert not [flag for flag in _REMOVED_FLAGS if flag in line], line


# -- @rules_python, which could not be fetched here ------------------------------------------------

# What the documentation of rules_python 1.7 has, as far as it is used:
# https://rules-python.readthedocs.io/en/latest/api/.
_DOCUMENTED = {
    "@rules_python//python:defs.bzl": {
        *("PyInfo", "py_binary", "py_library", "py_runtime", "py_runtime_pair", "py_test"),
    },
    "@rules_python//python:pip.bzl": {"compile_pip_requirements", "pip_parse", "pip_utils"},
    "@rules_python//python:repositories.bzl": {"py_repositories"},
    "@rules_python//python/extensions:pip.bzl": {"pip"},
    "@rules_python//python/extensions:python.bzl": {"python"},
}
_OF_PIP_PARSE = {"extra_pip_args", "hub_name", "python_version", "requirements_lock"}
_OF_COMPILE = {
    *("name", "src", "srcs", "requirements_in", "requirements_txt", "requirements_linux"),
    *("extra_args", "extra_deps", "generate_hashes", "tags", "visibility", "data", "env"),
}


def _names_after(call: str, text: str) -> list[set[str]]:
    """The names of the arguments of each call, as buildifier puts them on lines of their own."""
    calls = re.findall(rf"^(\[?){re.escape(call)}\(\n(.*?)^\)", text, re.DOTALL | re.MULTILINE)
    return [set(re.findall(r"^    (\w+) = ", arguments, re.MULTILINE)) for _, arguments in calls]


def test_of_the_python_rules_documented_names_are_used() -> None:
    files = [*SOURCES, ROOT / "WORKSPACE", ROOT / "MODULE.bazel"]
    loads = [found for path in files for found in _LOAD.findall(path.read_text())]
    used = {file for file, _ in loads if file.startswith("@rules_python")}
    assert used and used <= _DOCUMENTED.keys()
    for file, names in loads:
        if file in used:
            asked = re.findall(r"(?<!= )\"(\w+)\"", names) + re.findall(r"= \"(\w+)\"", names)
            assert set(asked) <= _DOCUMENTED[file], (file, asked)
    for file, name in re.findall(
        r"use_extension\(\"(@rules_python[^\"]+)\", \"(\w+)\"\)",
        (ROOT / "MODULE.bazel").read_text(),
    ):
        assert name in _DOCUMENTED[file]


def test_each_devices_lock_is_a_hub_and_has_targets() -> None:
    module, deps = (ROOT / "MODULE.bazel").read_text(), (ROOT / "deps/BUILD").read_text()
    table = (ROOT / "arch_config/devices.bzl").read_text()
    locks = dict(
        re.findall(r"^    \"(\w+)\": .*?lock = \"([^\"]+)\"", table, re.MULTILINE | re.DOTALL)
    )
    hubs = re.findall(
        r"hub_name = \"pypi_(\w+)\",\n.*\n    requirements_lock = \"([^\"]+)\"", module
    )
    assert len(locks) == 4 and dict(hubs) == locks
    assert _names_after("pip.parse", module) and all(
        names <= _OF_PIP_PARSE for names in _names_after("pip.parse", module)
    )
    (names,) = _names_after("compile_pip_requirements", deps)
    assert {"name", "src"} <= names <= _OF_COMPILE
    assert ") for device, row in DEVICES.items()]" in deps


def test_the_local_face_has_the_parameters_that_are_used() -> None:
    """It is taken by Bazel 4.2.3, and offline."""
    face = ROOT / "3rdparty/rules_python"
    names = set(
        re.findall(r"^(?:def )?([A-Za-z]\w+)(?: = |\()", (face / "local_pip.bzl").read_text(), re.M)
    )
    assert names - {"load"} == {"compile_pip_requirements"}
    (signature,) = re.findall(
        r"def compile_pip_requirements\((.*?)\):", (face / "local_pip.bzl").read_text(), re.DOTALL
    )
    taken = set(re.findall(r"^        (\w+)", signature, re.MULTILINE))
    (used,) = _names_after("compile_pip_requirements", (ROOT / "deps/BUILD").read_text())
    assert used <= taken <= _OF_COMPILE


def test_both_ways_to_the_release_take_the_same_one() -> None:
    (module,) = re.findall(
        r"name = \"rules_python\", version = \"([^\"]+)\"", (ROOT / "MODULE.bazel").read_text()
    )
    archive = (ROOT / "3rdparty/rules_python/repository.bzl").read_text()
    assert re.findall(r"rules_python-(\d[\d.]*\d)", archive) == [module, module]
