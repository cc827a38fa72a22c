"""Kernels that are compiled once per instruction set."""

load("//bazel:defs.bzl", "rtp_cc_library")

AVX2 = ["-mavx2", "-mfma", "-mf16c"]

AVX512 = AVX2 + [
    "-mavx512f",
    "-mavx512bw",
    "-mavx512dq",
    "-mavx512vl",
    "-mprefer-vector-width=512",
    # GCC 12 sees both inside its own intrinsics.
    "-Wno-maybe-uninitialized",
    "-Wno-uninitialized",
]

_VARIANTS = {
    "scalar": [],
    "avx2": AVX2,
    "avx512": AVX512,
}

def isa_kernel(name, hdrs, srcs = [], units = {}, deps = []):
    """`srcs` (NAME_kernel.cc) and `units` of them as scalar, AVX2 and AVX-512 code, one of which is picked at run time.

    The sources include vec.h and put everything into namespace rtp_llm::cpu::RTP_LLM_ISA.
    """
    for variant, copts in _VARIANTS.items():
        rtp_cc_library(
            name = name + "_" + variant,
            srcs = srcs,
            units = units,
            hdrs = hdrs,
            copts = copts,
            deps = deps + ["//rtp_llm/kernels/common:base", "//rtp_llm/kernels/cpu:vec"],
        )
    rtp_cc_library(
        name = name,
        hdrs = hdrs,
        deps = [":%s_%s" % (name, variant) for variant in _VARIANTS],
    )
