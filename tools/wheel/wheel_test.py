"""The wheel that Bazel built: its name, what it holds, what it asks for, and that it installs."""

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

import pytest
from packaging.tags import sys_tags
from packaging.utils import canonicalize_name, parse_wheel_filename

from tools.wheel import installed, symbols

WHEEL = installed.find_wheel(Path("rtp_llm/rtp_llm_cpu"))
_TAG = f"cp{sys.version_info.major}{sys.version_info.minor}"


@pytest.fixture(scope="module")
def contents() -> dict[str, bytes]:
    with zipfile.ZipFile(WHEEL) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> installed.Installed:
    return installed.install(WHEEL, tmp_path_factory.mktemp("environment"))


def _file(contents: dict[str, bytes], name: str) -> str:
    (found,) = (text for path, text in contents.items() if path.endswith(f".dist-info/{name}"))
    return found.decode()


def test_name_is_valid_and_fits_this_interpreter() -> None:
    name, version, _, tags = parse_wheel_filename(WHEEL.name)
    assert name == "rtp-llm"
    assert version.local == "cpu"
    (tag,) = tags
    assert (tag.interpreter, tag.abi) == (_TAG, _TAG)
    assert tag in set(sys_tags())


def test_holds_the_package_and_nothing_else(contents: dict[str, bytes]) -> None:
    package = {name for name in contents if ".dist-info/" not in name}
    assert all(name.startswith("rtp_llm/") for name in package)
    assert {"rtp_llm/__init__.py", "rtp_llm/cli.py", "rtp_llm/_build.json"} <= package
    unwanted = re.compile(r"_test\.py$|_for_tests|BUILD|\.(cc|h|o|a|safetensors)$|__pycache__")
    assert not [name for name in package if unwanted.search(name)]
    libraries = {name for name in package if name.endswith(".so")}
    assert {"rtp_llm/lib/librtp_llm_cpu.so"} < libraries
    assert len(libraries) == 2


def test_libraries_find_torch_beside_them(contents: dict[str, bytes], tmp_path: Path) -> None:
    for name in [name for name in contents if name.endswith(".so")]:
        path = tmp_path / Path(name).name
        path.write_bytes(contents[name])
        shared = symbols.read(path)
        expected = ("$ORIGIN/../../torch/lib",) if "/lib/" in name else ()
        assert shared.run_path == expected
        known = {"libc.so.6", "libm.so.6", "libstdc++.so.6", "libgcc_s.so.1", "libpthread.so.0"}
        torch = {"libc10.so", "libtorch_cpu.so"} if "/lib/" in name else set()
        assert torch <= set(shared.needed) <= known | torch | {"ld-linux-x86-64.so.2"}


def test_platform_is_what_the_symbols_need(contents: dict[str, bytes], tmp_path: Path) -> None:
    shared = []
    for name in [name for name in contents if name.endswith(".so")]:
        path = tmp_path / Path(name).name
        path.write_bytes(contents[name])
        shared.append(symbols.read(path))
    assert WHEEL.name.endswith(f"-{symbols.platform_tag(shared)}.whl")


def test_names_no_folder_of_the_machine_that_built_it(contents: dict[str, bytes]) -> None:
    folders = re.compile(rb"/(?:root|home|tmp|work|execroot|sandbox|_bazel_\w+)/[\w./-]+")
    # /tmp is a fair word in sources; in compiled code a folder is the builder's.
    libraries = {name: data for name, data in contents.items() if name.endswith(".so")}
    assert {name: folders.findall(data) for name, data in libraries.items()} == {
        name: [] for name in libraries
    }


def test_record_is_complete(contents: dict[str, bytes]) -> None:
    rows = list(csv.reader(io.StringIO(_file(contents, "RECORD"))))
    assert {row[0] for row in rows} == set(contents)
    for name, digest, size in rows:
        if digest:
            data = contents[name]
            sha = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            assert (digest, int(size)) == (f"sha256={sha}", len(data))


def test_metadata(contents: dict[str, bytes]) -> None:
    message = Parser().parsestr(_file(contents, "METADATA"))
    assert canonicalize_name(message["Name"]) == "rtp-llm"
    assert message["License-Expression"] == "Apache-2.0"
    requires = message.get_all("Requires-Dist")
    assert "torch>=2.11,<2.14" in requires
    assert all("==" in line for line in requires if not line.startswith("torch"))
    assert "rtp-llm = rtp_llm.cli:main" in _file(contents, "entry_points.txt")


def test_build_record(contents: dict[str, bytes]) -> None:
    record = json.loads(contents["rtp_llm/_build.json"])
    assert record["device"] == "cpu"
    assert record["torch"] == ">=2.11,<2.14"
    assert re.fullmatch(r"[0-9a-f]+", record["schema_hash"])
    assert re.fullmatch(r"unknown|[0-9a-f]{40}(-changed)?", record["commit"])


def test_installs_and_imports(environment: installed.Installed) -> None:
    program = (
        "import sys, rtp_llm, rtp_llm.sampling_params\n"
        "assert 'torch' not in sys.modules\n"
        "import json, pathlib, torch\n"
        "from rtp_llm import native, ops\n"
        "build = json.loads((pathlib.Path(rtp_llm.__file__).parent / '_build.json').read_text())\n"
        "x = torch.ones(2, 8)\n"
        "assert torch.equal(ops.rms_norm(x, torch.ones(8), 0.0), x)\n"
        "assert torch.ops.rtp_llm.schema_hash() == build['schema_hash']\n"
        "native.load_runtime().SchedulerConfig\n"
        "print(rtp_llm.__file__)\n"
    )
    printed = environment.run(environment.python, "-c", program)
    assert printed.startswith(str(environment.packages))


def test_operator_library_finds_torch_by_its_run_path(environment: installed.Installed) -> None:
    library = environment.packages / "rtp_llm" / "lib" / "librtp_llm_cpu.so"
    environment.run(environment.python, "-c", f"import ctypes; ctypes.CDLL({str(library)!r})")


def test_command_runs(environment: installed.Installed) -> None:
    assert "serve" in environment.run(environment.command, "--help")
