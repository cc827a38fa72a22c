"""Rules of the GPU kernels."""

load("//bazel:defs.bzl", "cuda_library", "gpu_library", "rtp_glue_library", "rtp_py_test")

def gpu_operators(name, arguments, srcs = None, private_hdrs = [], nvidia_only = False, glue_deps = []):
    """Kernels `name` (<name>.cu, <name>.h) and their registration `<name>_glue` (<name>_glue.cc).

    `arguments` are families of //rtp_llm/kernels/arguments. nvidia_only: not for ROCm.
    `glue_deps`: what else the registration calls.
    """
    folder = "//rtp_llm/kernels/arguments:"
    library = cuda_library if nvidia_only else gpu_library
    library(
        name = name,
        srcs = srcs or [name + ".cu"],
        hdrs = [name + ".h"] + private_hdrs,
        deps = [":gpu"] + [folder + family for family in arguments],
    )
    rtp_glue_library(
        name = name + "_glue",
        srcs = [name + "_glue.cc"],
        deps = [
            ":" + name,
            ":on_device",
        ] + glue_deps + [folder + family + "_checks" for family in arguments],
    )

def gpu_test(name, srcs, deps = []):
    """pytest with its tensors on the GPU that the build is for; skipped on a machine without one."""
    rtp_py_test(
        name = name,
        srcs = srcs,
        args = ["-p", "rtp_llm.kernels.cuda.gpu_for_tests"],
        tags = ["gpu"],
        deps = deps + ["//rtp_llm/kernels/cuda:gpu_for_tests"],
    )
