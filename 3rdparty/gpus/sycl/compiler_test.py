"""The compiler wrapper, with stand-ins for icx and icpx that write down how they were called."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

_STAND_IN = """\
#!{python}
import json, os, sys
files = {{word: open(word[1:]).read() for word in sys.argv if word.startswith("@/")}}
name = os.path.basename(sys.argv[0])
record = {{"name": name, "words": sys.argv[1:], "files": files, "pid": os.getpid()}}
json.dump(record, open(os.environ["RECORD"], "w"))
{then}
"""
_CPP = ["-isystem", "/sdk/include", "-include", "cstdint"]
_C = ["-D_GNU_SOURCE", "-include", "stdint.h", "-include", "unistd.h"]


class Wrapper:
    """The wrapper as @local_xpu has it, with its stand-ins, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        self.command = folder / "compiler"
        shutil.copy("3rdparty/gpus/sycl/compiler.py", self.command)
        self.environment = {"RECORD": str(folder / "record"), "TMPDIR": str(self.temporary)}
        for name in ("icx", "icpx"):
            self.stand_in(name)
        self.settings(
            {"icx": f"{folder}/icx", "icpx": f"{folder}/icpx", "includes": ["/sdk/include"]}
        )

    def settings(self, content: object) -> None:
        (self.folder / "toolchain.json").write_text(json.dumps(content))

    def stand_in(self, name: str, then: str = "") -> None:
        path = self.folder / name
        path.write_text(_STAND_IN.format(python=sys.executable, then=then))
        path.chmod(0o755)

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-I", "-B", str(self.command), *words],
            cwd=self.folder,
            env=self.environment,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *words: str) -> tuple[int, str]:
        """Exit code and standard error."""
        process = self.start(*words)
        _, said = process.communicate()
        return process.returncode, said

    def record(self) -> dict[str, object]:
        return dict(json.loads((self.folder / "record").read_text()))

    def called(self, *words: str) -> tuple[object, object]:
        """(compiler, its words) for a command that must succeed."""
        code, said = self.run(*words)
        assert code == 0, said
        record = self.record()
        return record["name"], record["words"]


@pytest.fixture
def wrapper(tmp_path: Path) -> Wrapper:
    return Wrapper(tmp_path)


def _parameters(wrapper: Wrapper, lines: list[str]) -> str:
    path = wrapper.folder / "out-2.params"
    path.write_text("\n".join(lines))
    return f"@{path}"


# A command line of Bazel 4.2.3, and what becomes of it.
def test_a_recorded_compile(wrapper: Wrapper) -> None:
    kept = [
        *("-U_FORTIFY_SOURCE", "-fstack-protector", "-Wall", "-fno-omit-frame-pointer", "-O2"),
        *("-MD", "-MF", "bazel-out/x/a.pic.d", "-fPIC", "-iquote", ".", "-std=c++17", "-fsycl"),
        *("-fsycl-targets=spir64", "-c", "rtp_llm/a.cc", "-o", "bazel-out/x/a.pic.o"),
    ]
    assert wrapper.called(*kept[:3], "-pass-exit-codes", *kept[3:]) == ("icpx", [*kept, *_CPP])


def test_a_parameter_file_without_a_change_is_handed_on(wrapper: Wrapper) -> None:
    given = _parameters(wrapper, ["-shared", "-o", "lib.so", "a file.o", "-Wl,-rpath,$ORIGIN", ""])
    assert wrapper.called(given) == ("icpx", [given])


def test_a_parameter_file_with_a_change_is_rewritten_once(wrapper: Wrapper) -> None:
    lines = ["-c", "a.cc", "-pass-exit-codes", "-mcpu=haswell", " odd  line ", '"quoted"', ""]
    given = _parameters(wrapper, lines)
    name, words = wrapper.called(given, "-DX")
    assert isinstance(words, list)
    assert (name, words[1:]) == ("icpx", ["-DX", *_CPP])
    assert words[0] != given
    text = "\n".join(["-c", "a.cc", "-mtune=haswell", *lines[4:]])
    assert wrapper.record()["files"] == {words[0]: text}
    assert Path(given[1:]).read_text() == "\n".join(lines)


def test_a_parameter_file_is_read_once(wrapper: Wrapper) -> None:
    """A pipe gives its content to the first reader only."""
    pipe = wrapper.folder / "pipe.params"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=("-c\na.cc\n-pass-exit-codes\n",))
    writer.start()
    name, words = wrapper.called(f"@{pipe}")
    writer.join()
    assert name == "icpx"
    assert isinstance(words, list)
    assert wrapper.record()["files"] == {words[0]: "-c\na.cc\n"}


def test_what_only_looks_like_a_parameter_file(wrapper: Wrapper) -> None:
    words = ["-shared", "-install_name", "@rpath/libx.so", "@"]
    assert wrapper.called(*words) == ("icpx", words)


def test_an_unreadable_parameter_file_is_an_error(wrapper: Wrapper) -> None:
    code, said = wrapper.run("-c", "@/no/such.params")
    assert code == 1
    assert said == (
        "xpu toolchain: cannot read the parameter file /no/such.params: No such file or directory\n"
    )


@pytest.mark.parametrize(
    "flag",
    [
        *("-Wno-stringop-truncation", "-Wno-stringop-overflow", "-Wno-maybe-uninitialized"),
        *("-Wno-format-overflow", "-Wno-class-memaccess", "-pass-exit-codes"),
        *("-Wformat-truncation=2", "-Wformat-overflow=1", "-Wstringop-truncation"),
        *("-Wstringop-truncation=3", "-Wstringop-overflow=4"),
    ],
)
def test_flags_of_gcc_alone_are_dropped(wrapper: Wrapper, flag: str) -> None:
    assert wrapper.called("-c", flag, "a.cc") == ("icpx", ["-c", "a.cc", *_CPP])


def test_other_warnings_stay(wrapper: Wrapper) -> None:
    kept = ["-Wall", "-Wformat", "-Wno-error=stringop-overflow", "-Wstringop-overflow", "-Werror"]
    assert wrapper.called("-c", *kept, "a.cc") == ("icpx", ["-c", *kept, "a.cc", *_CPP])


def test_a_processor_to_tune_for(wrapper: Wrapper) -> None:
    for cpu in ("native", "x86-64-v3", "skylake-avx512", "znver4"):
        assert wrapper.called("-c", f"-mcpu={cpu}", "a.c")[1] == ["-c", f"-mtune={cpu}", "a.c", *_C]
    code, said = wrapper.run("-c", "-mcpu=cortex-a72", "a.c")
    assert code == 0
    assert said == "xpu toolchain: -mcpu=cortex-a72 dropped: no x86 processor\n"
    assert wrapper.record()["words"] == ["-c", "a.c", *_C]


@pytest.mark.parametrize(
    ("words", "compiler", "extra"),
    [
        *((["-c", f"a{extension}"], "icpx", _CPP) for extension in (".cpp", ".cc", ".cxx", ".C")),
        (["-c", "a.c"], "icx", _C),
        (["-c", "a.unknown"], "icx", _C),
        *((["-c", source], "icx", []) for source in ("a.S", "a.s")),
        (["-c", "-x", "c++", "a.c"], "icpx", _CPP),
        (["-c", "-xc++", "a.c"], "icpx", _CPP),
        (["-x", "c++-header", "-c", "a.h"], "icpx", _CPP),
        (["-x", "c", "-c", "a.cc"], "icx", _C),
        (["-x", "assembler-with-cpp", "-c", "a.cc"], "icx", []),
        (["-x", "c", "-c", "a.cc", "-x", "none"], "icpx", _CPP),
        (["-xHost", "-c", "a.cc"], "icpx", _CPP),
        (["-c", "a.c", "-o", "a.cc"], "icx", _C),
        (["-c", "-include", "all.cc", "a.c", "-MF", "d.cc"], "icx", _C),
        (["-E", "-v", "-x", "c++", "/dev/null"], "icpx", _CPP),
    ],
)
def test_languages(wrapper: Wrapper, words: list[str], compiler: str, extra: list[str]) -> None:
    assert wrapper.called(*words) == (compiler, [*words, *extra])
    given = _parameters(wrapper, words)
    assert wrapper.called(given) == (compiler, [given, *extra])


@pytest.mark.parametrize("flag", ["-c", "-S", "-E", "-M", "-MM"])
def test_what_does_not_link(wrapper: Wrapper, flag: str) -> None:
    assert wrapper.called(flag, "a.c")[0] == "icx"


@pytest.mark.parametrize("flags", [[], ["-MD", "-MF", "a.d"], ["-shared"], ["-fsycl"]])
def test_links_are_by_the_cpp_driver(wrapper: Wrapper, flags: list[str]) -> None:
    assert wrapper.called(*flags, "a.o", "-o", "a") == ("icpx", [*flags, "a.o", "-o", "a"])
    assert wrapper.called(*flags, "a.c", "-o", "a")[0] == "icpx"


def test_the_process_becomes_the_compiler(wrapper: Wrapper) -> None:
    wrapper.stand_in("icx", "sys.exit(3)")
    process = wrapper.start("-c", "a.c", _parameters(wrapper, ["-pass-exit-codes"]))
    process.communicate()
    assert process.returncode == 3
    assert wrapper.record()["pid"] == process.pid


def test_a_signal_reaches_the_compiler(wrapper: Wrapper) -> None:
    handler = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(42))"
    wrapper.stand_in("icpx", f"import signal, time\n{handler}\nopen('ready', 'w')\ntime.sleep(60)")
    ready = wrapper.folder / "ready"
    process = wrapper.start("-c", "a.cc", _parameters(wrapper, ["-pass-exit-codes"]))
    while not ready.exists():
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == 42


@pytest.mark.parametrize("sign", [signal.SIGSEGV, signal.SIGKILL])
def test_nothing_is_left_when_the_compiler_crashes(wrapper: Wrapper, sign: signal.Signals) -> None:
    wrapper.stand_in("icpx", f"os.kill(os.getpid(), {int(sign)})")
    before = set(wrapper.folder.rglob("*")) | {wrapper.folder / "record"}
    given = _parameters(wrapper, ["-c", "a.cc", "-pass-exit-codes"])
    assert wrapper.run(given)[0] == -sign
    assert set(wrapper.folder.rglob("*")) - before == {Path(given[1:])}
    assert not list(wrapper.temporary.iterdir())


def test_a_missing_compiler_is_named(wrapper: Wrapper) -> None:
    (wrapper.folder / "icpx").unlink()
    code, said = wrapper.run("-c", "a.cc")
    assert code == 127
    assert said == (
        f"xpu toolchain: cannot run {wrapper.folder}/icpx: No such file or directory; "
        "is oneAPI still where it was configured?\n"
    )


def test_a_broken_configuration_is_named(wrapper: Wrapper) -> None:
    wrapper.settings({"icx": "/sdk/icx"})
    code, said = wrapper.run("-c", "a.cc")
    assert code == 1
    assert f"{wrapper.folder}/toolchain.json does not say which compilers to take: 'icpx'" in said
