"""Debian's clang 22 with the headers, runtime and device libraries of its HIP 5.2.

hipcc 5.2.3 calls clang 15, which knows no GPU after gfx90a.
"""

load("//3rdparty/gpus:probe.bzl", "find_part", "run")

# What all kernels were found to compile for, and the number by which device libraries know it.
_ISA_VERSIONS = {
    "gfx90a": 9010,
    "gfx942": 9402,
    "gfx950": 9500,
}

# Code objects of the version that HIP 5.2 loads, and later ones too.
_OBJECT = "-mcode-object-version=4"

# HIP 5.2's headers ask for it, and clang 22 no longer says it. All of gfx9 have 64 lanes.
_LANES = "-D__AMDGCN_WAVEFRONT_SIZE=64"

def _device_library(rctx, kit, clang, gpu, isa_version):
    run(rctx, kit, "a device library for " + gpu, [
        clang,
        "--target=amdgcn-amd-amdhsa",
        "-nogpulib",
        _OBJECT,
        "-x",
        "cl",
        "-cl-std=CL2.0",
        "-O1",
        "-DISA_VERSION=%d" % isa_version,
        "-c",
        "-emit-llvm",
        str(rctx.path(rctx.attr._device_part)),
        "-o",
        "device/oclc_isa_version_%s.bc" % gpu[len("gfx"):],
    ])

def clang22_toolchain(rctx, kit, clang, root, bitcode, bundler):
    """The GPUs it compiles for and its flags; files that these name are made in device/ and bin/.

    `bitcode`: the folder of HIP's device libraries; `bundler`: clang-offload-bundler of any version,
    which Debian's clang 22 comes without.
    """
    folder = clang[:clang.rindex("/")]
    find_part(rctx, kit, folder, "the linker of clang 22", ["ld.lld", "ld.lld-22"])
    made = ["oclc_isa_version_%s.bc" % gpu[len("gfx"):] for gpu in _ISA_VERSIONS]
    for library in rctx.path(bitcode).readdir():
        if library.basename.endswith(".bc") and library.basename not in made:
            rctx.symlink(library, "device/" + library.basename)
    for gpu, isa_version in _ISA_VERSIONS.items():
        _device_library(rctx, kit, clang, gpu, isa_version)
    rctx.symlink(bundler, "bin/clang-offload-bundler")
    flags = ["--rocm-path=" + root, _OBJECT, _LANES]
    return struct(known = list(_ISA_VERSIONS), flags = flags)
