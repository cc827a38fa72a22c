"""The compiler of the oneAPI toolchain: C by icx, C++, SYCL and every link by icpx.

Bazel and BUILD files speak to gcc; what icpx does not know is taken out here. The process becomes
the compiler's, so that signals and the exit status are its own. A parameter file that had to change
lives in memory (memfd_create): there is no temporary file that anything could leave behind.

@local_xpu has this file with its toolchain.json beside it: the paths of icx and icpx, and the
folders of the SDK's headers.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

_DROPPED = {
    "-Wno-class-memaccess",
    "-Wno-format-overflow",
    "-Wno-maybe-uninitialized",
    "-Wno-stringop-overflow",
    "-Wno-stringop-truncation",
    "-pass-exit-codes",
}
_DROPPED_PREFIXES = (
    "-Wformat-overflow=",
    "-Wformat-truncation=",
    "-Wstringop-overflow=",
    "-Wstringop-truncation",
)

_X86_PREFIXES = ("x86-64", "znver", "bdver", "btver")
_X86_CPUS = {
    *("generic", "native", "core2", "penryn", "nehalem", "westmere", "sandybridge", "ivybridge"),
    *("haswell", "broadwell", "skylake", "skylake-avx512", "cascadelake", "cooperlake"),
    *("cannonlake", "icelake-client", "icelake-server", "rocketlake", "tigerlake", "alderlake"),
    *("raptorlake", "meteorlake", "arrowlake", "lunarlake", "sapphirerapids", "emeraldrapids"),
    *("graniterapids", "sierraforest", "clearwaterforest", "silvermont", "goldmont", "tremont"),
    *("k8", "opteron", "athlon64", "amdfam10", "atom", "bonnell"),
}

# Options whose value is the next word, which then is no source.
_WITH_VALUE = {
    *("-D", "-I", "-L", "-MF", "-MQ", "-MT", "-U", "-Xclang", "-Xlinker", "-idirafter"),
    *("-imacros", "-include", "-iprefix", "-iquote", "-isysroot", "-isystem", "-o", "-target"),
}
_CPP_SOURCES = (".cpp", ".cc", ".cxx", ".C")
_ASSEMBLER_SOURCES = (".S", ".s")
# With one of these nothing is linked; -MD and -MF only write dependencies on the side.
_NO_LINK = {"-c", "-S", "-E", "-M", "-MM", "-fsyntax-only"}


class ToolchainError(Exception):
    """The command cannot be run; the message is one line."""


@dataclass(frozen=True)
class Toolchain:
    """Absolute paths."""

    icx: str
    icpx: str
    includes: tuple[str, ...]


def main(arguments: Sequence[str], beside: Path) -> int:
    """Becomes the compiler; an exit code only where there is none to become."""
    try:
        toolchain = _read_toolchain(beside / "toolchain.json")
        _become(command_line(arguments, toolchain))
    except ToolchainError as error:
        print(f"xpu toolchain: {error}", file=sys.stderr)
        return 127 if isinstance(error.__cause__, FileNotFoundError) else 1


def command_line(arguments: Sequence[str], toolchain: Toolchain) -> list[str]:
    """The command for what Bazel asked of gcc."""
    passed: list[str] = []  # to the compiler
    words: list[str] = []  # the same with the lines of parameter files
    for argument in arguments:
        if _is_parameter_file(argument):
            lines = _read_lines(argument[1:])
            kept = list(_translated(lines))
            passed.append(argument if kept == lines else "@" + _file_in_memory(kept))
            words += kept
        else:
            kept = list(_translated([argument]))
            passed += kept
            words += kept
    links = not _NO_LINK.intersection(words)
    language = _language(words) or ("" if links else "c")
    compiler = toolchain.icpx if links or language == "c++" else toolchain.icx
    return [compiler, *passed, *_extra_includes(language, toolchain)]


def _is_parameter_file(argument: str) -> bool:
    return argument.startswith("@") and len(argument) > 1 and not argument.startswith("@rpath")


def _read_lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(errors="surrogateescape").split("\n")
    except OSError as error:
        raise ToolchainError(f"cannot read the parameter file {path}: {error.strerror}") from None


def _file_in_memory(lines: Sequence[str]) -> str:
    """A path under which the compiler, as this process, reads the lines."""
    descriptor = os.memfd_create("parameters", 0)  # 0: stays open in the compiler
    with open(descriptor, "w", errors="surrogateescape", closefd=False) as stream:
        stream.write("\n".join(lines))
    return f"/proc/self/fd/{descriptor}"


def _translated(words: Sequence[str]) -> Iterator[str]:
    for word in words:
        if word in _DROPPED or word.startswith(_DROPPED_PREFIXES):
            continue
        if not word.startswith("-mcpu="):
            yield word
            continue
        # gcc's -mcpu is a wish about speed; -march could enable what the machine lacks.
        cpu = word.removeprefix("-mcpu=")
        if cpu in _X86_CPUS or cpu.startswith(_X86_PREFIXES):
            yield f"-mtune={cpu}"
        else:
            print(f"xpu toolchain: {word} dropped: no x86 processor", file=sys.stderr)


def _language(words: Sequence[str]) -> str:
    """c++, assembler or c: the last -x, else the first source whose extension says; "" for none."""
    said, found = "", ""
    following = iter(words)
    for word in following:
        if word == "-x":
            said = next(following, "")
        elif word.startswith("-x") and word[2:3].islower():  # -xHost is a processor
            said = word[2:]
        elif word in _WITH_VALUE:
            next(following, None)
        elif not word.startswith("-") and not found:
            found = _language_of_source(word)
    if said and said != "none":
        return next((known for known in ("c++", "assembler") if said.startswith(known)), "c")
    return found


def _language_of_source(path: str) -> str:
    if path.endswith(_CPP_SOURCES):
        return "c++"
    if path.endswith(_ASSEMBLER_SOURCES):
        return "assembler"
    return "c" if path.endswith(".c") else ""


def _extra_includes(language: str, toolchain: Toolchain) -> list[str]:
    """What gcc's headers bring along and sources have come to count on."""
    if language == "c++":
        folders = [word for folder in toolchain.includes for word in ("-isystem", folder)]
        return [*folders, "-include", "cstdint"]
    if language == "c":
        return ["-D_GNU_SOURCE", "-include", "stdint.h", "-include", "unistd.h"]
    return []


def _read_toolchain(path: Path) -> Toolchain:
    try:
        settings = json.loads(path.read_text())
        return Toolchain(settings["icx"], settings["icpx"], tuple(settings["includes"]))
    except (OSError, ValueError, KeyError) as error:
        raise ToolchainError(f"{path} does not say which compilers to take: {error}") from None


def _become(command: list[str]) -> NoReturn:
    sys.stderr.flush()
    try:
        os.execv(command[0], command)
    except OSError as error:
        raise ToolchainError(
            f"cannot run {command[0]}: {error.strerror}; is oneAPI still where it was configured?"
        ) from error


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], Path(__file__).parent))
