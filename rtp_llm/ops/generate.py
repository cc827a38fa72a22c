# SPDX-License-Identifier: Apache-2.0
"""Writes the C++ half of every operator from its declaration; Bazel runs it, git has none of it.

    python -m rtp_llm.ops.generate calls OUT FAMILY          a struct per operator of a family
    python -m rtp_llm.ops.generate schemas OUT               the schemas of all
    python -m rtp_llm.ops.generate glue OUT DEVICE KERNELS   registers the kernels of source files

The struct is what glue and checks are given, filled from torch's stack, so that no C++ file repeats
a list of parameters. Glue is made for kernels with a mark above them:

    RTP_LLM_OPERATOR(rms_norm)                     CUDA: rms_norm(args, stream)
    RTP_LLM_OPERATOR(rms_norm, args.rows, grain)   CPU: rms_norm(args, begin, end) on rows; how many
                                                   a thread takes at least
    RTP_LLM_OPERATOR(sample)                       CPU: sample(args, parallel), on its own threads
    RTP_LLM_OPERATOR(rms_norm, args.rows, items)   SYCL kernel: groups, and items of a group
    RTP_LLM_OPERATOR(sample)                       SYCL host code: sample(queue, args)
    RTP_LLM_OPERATOR(sample, scratch)              any of them but rows: sample(args, scratch, ...)
                                                   with sample_scratch(args) bytes of memory, on the
                                                   CPU sample_scratch(args, threads); null for 0

`prepare(const RmsNormCall&)` of the family's checks gives the kernel's arguments and its results.
Where a parameter is an IndexTensor, the CPU calls `check_indices(args)` of the checks first.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rtp_llm.ops.schema import OPERATORS, OperatorEntry, native_schemas

_PARAMETER = re.compile(r"(\w+)(?:\(\w!\))?(\??) (\w+)(?:=.*)?")
_CPP_TYPES = {"Tensor": "Tensor", "int": "int64_t", "float": "double", "bool": "bool"} | {
    "str": "std::string",
    "Tensor?": "OptionalTensor",
    "bool?": "std::optional<bool>",
}
_MARK = "RTP_LLM_OPERATOR("
_COMMON = "rtp_llm/kernels/common"


@dataclass(frozen=True)
class Call:
    """An operator as C++ sees it."""

    name: str
    parameters: tuple[tuple[str, str], ...]  # (type, name)
    result: str

    @property
    def stem(self) -> str:
        """The stem of the C++ names, such as RmsNorm for operator rms_norm."""
        return "".join(word.capitalize() for word in self.name.split("_"))


def call_of(entry: OperatorEntry) -> Call:
    """The C++ types of a schema. KeyError for one that glue does not know."""
    text, _, result = entry.schema.partition("(")[2].rpartition(") -> ")
    matches = [_PARAMETER.fullmatch(part) for part in text.split(", ")]
    parameters = [match.groups() for match in matches if match]
    if len(parameters) != len(matches):
        raise KeyError(f"{entry.schema}: a parameter of a type that glue does not know")
    results = [_CPP_TYPES[part] for part in result.strip("()").split(", ") if part]
    is_tuple = result.startswith("(") and results
    return Call(
        entry.name,
        tuple((_CPP_TYPES[kind + mark], name) for kind, mark, name in parameters),
        f"std::tuple<{', '.join(results)}>" if is_tuple else (results or ["void"])[0],
    )


def calls(family: str) -> str:
    """The header with the structs of a family."""
    entries = [
        entry
        for entry in OPERATORS.values()
        if entry.module.split(".")[0] == family and not entry.triton
    ]
    if not entries:
        raise KeyError(f"no operator is declared in rtp_llm/ops/{family}")
    return "\n".join(
        [
            f"// What operators of rtp_llm/ops/{family} are called with, in the order of schemas.",
            "#pragma once",
            "",
            f'#include "{_COMMON}/glue.h"',
            "",
            "namespace rtp_llm::glue {",
            *(_struct(call_of(entry)) for entry in entries),
            "}  // namespace rtp_llm::glue",
            "",
        ]
    )


def _struct(call: Call) -> str:
    members = "".join(f"  {kind} {name};\n" for kind, name in call.parameters)
    taken = ",\n        ".join(
        f"{name}(take<{kind}>(stack[{index}]))"
        for index, (kind, name) in enumerate(call.parameters)
    )
    tensors = [name for kind, name in call.parameters if kind in ("Tensor", "OptionalTensor")]
    first = next(name for kind, name in call.parameters if kind == "Tensor")
    return f"""
struct {call.stem}Call {{
  static constexpr const char* kName = "{call.name}";
  static constexpr uint64_t kArguments = {len(call.parameters)};
  using Result = {call.result};

{members}
  explicit {call.stem}Call(const StableIValue* stack)
      : {taken} {{
    SameDevice check;
{"".join(f"    check({name});{chr(10)}" for name in tensors)}  }}
  const Tensor& first_tensor() const {{ return {first}; }}
}};
"""


def schemas() -> str:
    """The header with the schemas of all operators, sorted, as schema_hash expects them."""
    lines = "".join(f'    "{schema}",\n' for schema in native_schemas())
    return (
        "#pragma once\n\nnamespace rtp_llm {\n\n"
        f"constexpr const char* kSchemas[] = {{\n{lines}}};\n\n}}  // namespace rtp_llm\n"
    )


@dataclass(frozen=True)
class Mark:
    """One RTP_LLM_OPERATOR of a kernel's source."""

    entry: OperatorEntry
    program: str  # the file's name without its suffix
    extent: tuple[str, ...]  # what the mark says about the size of the work


def marks(path: Path) -> list[Mark]:
    """The operators that a source file has kernels of. KeyError for one that is not declared."""
    found = []
    for part in path.read_text().split(f"\n{_MARK}")[1:]:
        name, *extent = _arguments(part)
        if name not in OPERATORS:
            raise KeyError(f"{path}: {_MARK}{name}) is not an operator of rtp_llm/ops")
        found.append(Mark(OPERATORS[name], path.name.partition(".")[0], tuple(extent)))
    return found


def _arguments(text: str) -> list[str]:
    """The arguments of a macro up to its closing parenthesis."""
    depth, parts = 0, [""]
    for char in text:
        if char == ")" and depth == 0:
            break
        depth += (char == "(") - (char == ")")
        if char == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    return [" ".join(part.split()) for part in parts]


@dataclass(frozen=True)
class _Form:
    """How a device runs a kernel: its declaration, and the statements of the glue."""

    declaration: str
    body: str


_CPU_HEADERS = ("rtp_llm/kernels/common/cpu_features.h",)
_XPU_HEADERS = ("rtp_llm/kernels/xpu/on_queue.h", "rtp_llm/kernels/xpu/launch.h")
_SCRATCH = "  const glue::Scratch scratch(call.first_tensor(), {name}_scratch({arguments}));\n"
_ON_DEVICE = "  const OnDevice device(call.first_tensor());\n"
_ON_QUEUE = "  const OnQueue device(call.first_tensor());\n"
_PARALLEL = "  const ParallelFor& parallel = glue::parallel_for();\n"

# Of (device, what the mark says): "rows" (two sizes), "plain" or "scratch"; "isa" is the CPU's for
# sources that are compiled for each instruction set.
_FORMS = {
    ("cpu", "isa"): _Form(
        "RTP_LLM_FOR_EACH_ISA(void {name}(const {stem}Args& args, int64_t begin, int64_t end);)",
        "  glue::run(RTP_LLM_PICK_ISA({name}), prepared.args, {extent[0]}, {extent[1]});\n",
    ),
    ("cpu", "rows"): _Form(
        "void {name}(const {stem}Args& args, int64_t begin, int64_t end);",
        "  glue::run(&{name}, prepared.args, {extent[0]}, {extent[1]});\n",
    ),
    ("cpu", "plain"): _Form(
        "void {name}(const {stem}Args& args, const ParallelFor& parallel);",
        "  {name}(prepared.args, glue::parallel_for());\n",
    ),
    ("cpu", "scratch"): _Form(
        "int64_t {name}_scratch(const {stem}Args& args, int threads);\n"
        "void {name}(const {stem}Args& args, void* scratch, const ParallelFor& parallel);",
        _PARALLEL
        + _SCRATCH.replace("{arguments}", "args, parallel.num_threads()")
        + "  {name}(prepared.args, scratch.data(), parallel);\n",
    ),
    ("cuda", "plain"): _Form(
        "void {name}(const {stem}Args& args, void* stream);",
        _ON_DEVICE + "  {name}(prepared.args, device.stream());\n",
    ),
    ("cuda", "scratch"): _Form(
        "int64_t {name}_scratch(const {stem}Args& args);\n"
        "void {name}(const {stem}Args& args, void* scratch, void* stream);",
        _ON_DEVICE
        + _SCRATCH.replace("{arguments}", "args")
        + "  {name}(prepared.args, scratch.data(), device.stream());\n",
    ),
    ("xpu", "rows"): _Form(
        "",
        _ON_QUEUE + '  submit(device.queue(), {{"{program}", entry("{name}", args.dtype), '
        "{extent[0]}, {extent[1]}}}, args);\n",
    ),
    ("xpu", "plain"): _Form(
        "void {name}(Queue& queue, const {stem}Args& args);",
        _ON_QUEUE + "  {name}(device.queue(), prepared.args);\n",
    ),
    ("xpu", "scratch"): _Form(
        "int64_t {name}_scratch(const {stem}Args& args);\n"
        "void {name}(Queue& queue, const {stem}Args& args, void* scratch);",
        # Before the queue: the tests' queue waits at its end for kernels that use the scratch.
        _SCRATCH.replace("{arguments}", "args")
        + _ON_QUEUE
        + "  {name}(device.queue(), prepared.args, scratch.data());\n",
    ),
}
_BLOCKS = {
    "cpu": "RTP_LLM_REGISTER_KERNELS(rtp_llm, CPU, library)",
    "cuda": "RTP_LLM_REGISTER_KERNELS(rtp_llm, CUDA, library)",
    "xpu": "RTP_LLM_XPU_OPERATORS(library)",
}
_HEADERS = {
    "cpu": _CPU_HEADERS,
    "cuda": ("rtp_llm/kernels/cuda/on_device.h",),
    "xpu": _XPU_HEADERS,
}


def _form_of(device: str, mark: Mark) -> _Form:
    """ValueError for a mark that says what the device does not know."""
    kind = {0: "plain", 1: mark.extent[0] if mark.extent else "", 2: "rows"}.get(len(mark.extent))
    if device == "cpu" and kind == "rows" and mark.program.endswith("_kernel"):
        kind = "isa"
    if (device, kind) not in _FORMS:
        said = ", ".join((mark.entry.name, *mark.extent))
        raise ValueError(f"{_MARK}{said}) in {mark.program}: not a form of {device} kernels")
    return _FORMS[device, str(kind)]


def glue(device: str, sources: Iterable[Path]) -> str:
    """The registrations of the kernels that `sources` mark. ValueError when none is marked."""
    marked = [mark for source in sources for mark in marks(source)]
    if not marked:
        raise ValueError(f"no {_MARK}...) at the start of a line of {', '.join(map(str, sources))}")
    parts = [(mark, call_of(mark.entry), _form_of(device, mark)) for mark in marked]
    modules = dict.fromkeys(mark.entry.module.replace(".", "/") for mark in marked)
    includes = [*_HEADERS[device], f"{_COMMON}/scratch.h"]
    includes += [f"{_COMMON}/{module}.h" for module in modules]
    includes += [f"{_COMMON}/{name}/calls.h" for name in {m.partition("/")[0] for m in modules}]
    prepared = "".join(
        f"Prepared<{call.stem}Args, {call.result}> prepare(const {call.stem}Call& call);\n"
        + (f"void check_indices(const {call.stem}Args& args);\n" * _checks(device, mark))
        for mark, call, _ in parts
    )
    functions = "".join(_function(device, *part) for part in parts)
    declared = "\n".join(f.declaration.format(name=c.name, stem=c.stem) for _, c, f in parts)
    lines = "".join(f"  glue::implement<&call_{call.name}>(library);\n" for _, call, _ in parts)
    return (
        "".join(f'#include "{include}"\n' for include in includes)
        + f"\nnamespace rtp_llm::glue {{\n{prepared}}}\n\nnamespace rtp_llm::{device} {{\n"
        + f"{declared}\n\nnamespace {{\n\nusing glue::Tensor;\n{functions}\n}}  // namespace\n\n"
        + f"{_BLOCKS[device]} {{\n{lines}}}\n\n}}  // namespace rtp_llm::{device}\n"
    )


def _checks(device: str, mark: Mark) -> bool:
    """Whether the host looks into index tensors: the CPU's are in its memory."""
    return device == "cpu" and mark.entry.has_indices


def _function(device: str, mark: Mark, call: Call, form: _Form) -> str:
    work = form.body.format(name=call.name, program=mark.program, extent=mark.extent)
    if _checks(device, mark):
        work = "  glue::check_indices(args);\n" + work
    result = "" if call.result == "void" else "  return std::move(prepared.result);\n"
    return f"""
{call.result} call_{call.name}(const glue::{call.stem}Call& call) {{
  auto prepared = prepare(call);
  [[maybe_unused]] const auto& args = prepared.args;
{work}{result}}}
"""


def main(arguments: Sequence[str]) -> None:
    """See the top of the file."""
    kind, out, *rest = arguments
    if kind == "calls":
        text = calls(*rest)
    elif kind == "schemas":
        text = schemas()
    else:
        text = glue(rest[0], [Path(path) for path in rest[1:]])
    Path(out).write_text(text)


if __name__ == "__main__":
    main(sys.argv[1:])
