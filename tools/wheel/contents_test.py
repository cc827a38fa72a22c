# SPDX-License-Identifier: Apache-2.0
"""The wheel of the build's device, opened: its name, what it holds and what that needs.

Run under each config: bazel test --config=cuda //tools/wheel:contents_test.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import re
import sys
import zipfile
from email.parser import Parser
from pathlib import Path
from typing import Any

import pytest
from packaging.tags import sys_tags
from packaging.utils import canonicalize_name, parse_wheel_filename

from tools.wheel import imports, metadata, symbols

(FOLDER,) = Path("rtp_llm").glob("rtp_llm_*")
(WHEEL,) = FOLDER.glob("*.whl")
DEVICE = FOLDER.name.removeprefix("rtp_llm_")
ROW: dict[str, Any] = json.loads(Path("arch_config/devices.json").read_text())[DEVICE]
LIBRARY = f"rtp_llm/lib/librtp_llm_{DEVICE}.so"
_TAG = f"cp{sys.version_info.major}{sys.version_info.minor}"

_TORCH_FOLDER = "$ORIGIN/../../torch/lib"
_RUN_PATHS = {
    "cpu": (_TORCH_FOLDER,),
    "cuda": (_TORCH_FOLDER, "$ORIGIN/../../nvidia/cu13/lib"),
    "rocm": (_TORCH_FOLDER,),
    "xpu": (_TORCH_FOLDER, "$ORIGIN/../../../.."),  # where pip puts libsycl.so
}
_SYSTEM = {
    "ld-linux-x86-64.so.2",
    "libc.so.6",
    "libdl.so.2",
    "libgcc_s.so.1",
    "libm.so.6",
    "libpthread.so.0",
    "libstdc++.so.6",
}
_TORCH = {"libc10.so", "libtorch_cpu.so"}


@pytest.fixture(scope="module")
def contents() -> dict[str, bytes]:
    with zipfile.ZipFile(WHEEL) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.fixture(scope="module")
def libraries(
    contents: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, symbols.SharedObject]:
    folder = tmp_path_factory.mktemp("libraries")
    shared = {}
    for name in [name for name in contents if name.endswith(".so")]:
        path = folder / Path(name).name
        path.write_bytes(contents[name])
        shared[name] = symbols.read(path)
    return shared


def _file(contents: dict[str, bytes], name: str) -> str:
    (found,) = (text for path, text in contents.items() if path.endswith(f".dist-info/{name}"))
    return found.decode()


def test_name_is_valid_and_fits_this_interpreter() -> None:
    name, version, _, tags = parse_wheel_filename(WHEEL.name)
    assert name == "rtp-llm"
    assert version.local == ROW["version_local"]
    (tag,) = tags
    assert (tag.interpreter, tag.abi) == (_TAG, _TAG)
    assert _TAG in ROW["python_tags"]
    assert tag in set(sys_tags())


def test_holds_the_package_and_nothing_else(contents: dict[str, bytes]) -> None:
    package = {name for name in contents if ".dist-info/" not in name}
    assert all(name.startswith("rtp_llm/") for name in package)
    expected = {"rtp_llm/__init__.py", "rtp_llm/cli.py", "rtp_llm/_build.json", "rtp_llm/py.typed"}
    page = {"index.html", "page.js", "page.css", "icon.svg", "licenses.txt"}
    expected |= {f"rtp_llm/server/http/bundle/{name}" for name in page}
    assert expected <= package
    unwanted = re.compile(
        r"_test\.py$|_for_tests|rtp_llm/testing/|BUILD|\.(cc|h|o|a|safetensors)$|__pycache__|node_modules|/source/"
    )
    assert not [name for name in package if unwanted.search(name)]
    libraries = {name for name in package if name.endswith(".so")}
    assert {LIBRARY} < libraries
    assert len(libraries) == 2  # and the runtime


def test_libraries_find_torch_next_to_them(libraries: dict[str, symbols.SharedObject]) -> None:
    for name, shared in libraries.items():
        operators = name == LIBRARY
        assert shared.run_path == (_RUN_PATHS[DEVICE] if operators else ())
        wanted = _TORCH | set(ROW["needed"]) if operators else set()
        assert wanted <= set(shared.needed) <= _SYSTEM | wanted


def test_platform_is_what_the_symbols_need(libraries: dict[str, symbols.SharedObject]) -> None:
    tag = symbols.platform_tag(libraries.values())
    assert WHEEL.name.endswith(f"-{tag}.whl")
    assert tag.partition("manylinux_2_")[2].partition("_")[2] in ROW["machines"]


def test_names_no_folder_of_the_machine_that_built_it(contents: dict[str, bytes]) -> None:
    folders = re.compile(rb"/(?:root|home|tmp|work|execroot|sandbox|_bazel_\w+)/[\w./-]+")
    # /tmp may appear in sources; in compiled code such a folder is the builder's.
    libraries = {name: data for name, data in contents.items() if name.endswith(".so")}
    assert {name: folders.findall(data) for name, data in libraries.items()} == {
        name: [] for name in libraries
    }


def test_the_library_is_the_one_whose_kernels_are_tested(contents: dict[str, bytes]) -> None:
    assert contents[LIBRARY] == Path(LIBRARY).read_bytes()


def test_record_is_complete(contents: dict[str, bytes]) -> None:
    rows = list(csv.reader(io.StringIO(_file(contents, "RECORD"))))
    assert {row[0] for row in rows} == set(contents)
    for name, digest, size in rows:
        if digest:
            data = contents[name]
            sha = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            assert (digest, int(size)) == (f"sha256={sha}", len(data))


def test_metadata_asks_for_ranges_that_the_lock_lies_in(contents: dict[str, bytes]) -> None:
    message = Parser().parsestr(_file(contents, "METADATA"))
    assert canonicalize_name(message["Name"]) == "rtp-llm"
    assert message["Version"] == WHEEL.name.split("-")[1]
    assert message["License-Expression"] == "Apache-2.0"
    lock = Path(ROW["lock"].removeprefix("//").replace(":", "/"))
    wanted = [Path("deps/requirements_base.in"), Path(f"deps/requirements_{DEVICE}.in")]
    selection = metadata.Selection(tuple(ROW["excluded"]), ROW["renamed"])
    requires = metadata.requirements(wanted, lock, selection)
    assert not [line for line in requires if "==" in line]
    assert message.get_all("Requires-Dist") == [*requires, *metadata.extra_requirements()]
    assert message.get_all("Provides-Extra") == ["ray"]
    assert message["Description-Content-Type"] == "text/markdown"
    assert "# RTP-LLM" in message.get_payload()
    assert "Typing :: Typed" in message.get_all("Classifier")
    assert {"Homepage", "Documentation"} <= {
        line.partition(",")[0] for line in message.get_all("Project-URL")
    }
    assert "rtp-llm = rtp_llm.__main__:main" in _file(contents, "entry_points.txt")


def test_asks_for_every_package_that_its_modules_import(contents: dict[str, bytes]) -> None:
    """triton comes with the torch of some devices; without it, its kernels are never imported."""
    sources = {name: data.decode() for name, data in contents.items() if name.endswith(".py")}
    modules = imports.third_party(sources, "rtp_llm")
    assert {"fastapi", "numpy", "torch", "zmq"} <= modules.keys()
    triton = modules.pop("triton")
    assert all(name.startswith("rtp_llm/kernels/triton/") for name in triton)
    requires = Parser().parsestr(_file(contents, "METADATA")).get_all("Requires-Dist")
    assert imports.undeclared(modules, requires) == {}


def test_build_record(contents: dict[str, bytes]) -> None:
    record = json.loads(contents["rtp_llm/_build.json"])
    assert record["device"] == DEVICE
    assert record["torch"] == ">=2.11,<2.14"
    targets = json.loads(Path("arch_config/targets.json").read_text())
    assert record["targets"] == targets.get(DEVICE, [])
    assert re.fullmatch(r"[0-9a-f]+", record["schema_hash"])
    assert re.fullmatch(r"unknown|[0-9a-f]{40}(-changed)?", record["commit"])
