# SPDX-License-Identifier: Apache-2.0
"""What a library's code for AMD GPUs says of its kernels.

clang puts the code objects of a source into a bundle (https://clang.llvm.org/docs/
ClangOffloadBundler.html), each of them an ELF file whose note describes its kernels
(https://llvm.org/docs/AMDGPUUsage.html, code object V3 and later metadata).
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
from elftools.elf.elffile import ELFFile
from elftools.elf.segments import NoteSegment

_MAGIC = b"__CLANG_OFFLOAD_BUNDLE__"
_PREFIX = "hipv4-amdgcn-amd-amdhsa--"


@dataclass(frozen=True)
class Kernel:
    """A kernel: sizes in bytes, registers of a lane (vector) and of a wave (scalar)."""

    gpu: str
    symbol: str  # mangled
    vector_registers: int
    vector_spills: int
    scalar_spills: int
    private_bytes: int  # of a lane, in memory
    shared_bytes: int


def kernels_of(library: Path) -> list[Kernel]:
    """All kernels of a shared object, for every GPU that it has code for."""
    with library.open("rb") as file:
        section = ELFFile(file).get_section_by_name(".hip_fatbin")
        assert section is not None, f"{library} has no code for AMD GPUs"
        bundles = section.data()
    return [
        kernel for gpu, code in _code_objects(bundles) for kernel in _kernels_of_code(gpu, code)
    ]


def _code_objects(section: bytes) -> Iterator[tuple[str, bytes]]:
    """(GPU, ELF file) of each bundle in a section of several, one for each source."""
    start = section.find(_MAGIC)
    while start >= 0:
        at = start + len(_MAGIC)
        (count,) = struct.unpack_from("<Q", section, at)
        at += 8
        for _ in range(count):
            offset, size, length = struct.unpack_from("<QQQ", section, at)
            name = section[at + 24 : at + 24 + length].decode()
            at += 24 + length
            if name.startswith(_PREFIX):
                yield name.removeprefix(_PREFIX), section[start + offset : start + offset + size]
        start = section.find(_MAGIC, at)


def _kernels_of_code(gpu: str, code: bytes) -> Iterator[Kernel]:
    for segment in ELFFile(io.BytesIO(code)).iter_segments("PT_NOTE"):
        assert isinstance(segment, NoteSegment)
        for note in segment.iter_notes():
            if note["n_name"] != "AMDGPU":
                continue
            for kernel in msgspec.msgpack.decode(note["n_descdata"])["amdhsa.kernels"]:
                yield Kernel(
                    gpu,
                    kernel[".name"],
                    kernel[".vgpr_count"],
                    kernel[".vgpr_spill_count"],
                    kernel[".sgpr_spill_count"],
                    kernel[".private_segment_fixed_size"],
                    kernel[".group_segment_fixed_size"],
                )
