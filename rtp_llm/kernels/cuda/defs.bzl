"""Rules of the GPU kernels."""

load("//bazel:defs.bzl", "cuda_library", "gpu_library", "rtp_glue_library", "rtp_py_test")
load("//rtp_llm/kernels:generated.bzl", "generated_glue")

def gpu_operators(
        name,
        arguments,
        family = None,
        srcs = None,
        nvidia_srcs = [],
        private_hdrs = [],
        nvidia_only = False,
        kernel_deps = [],
        glue_deps = [],
        glue_srcs = [],
        marked = False):
    """Kernels `name` (<name>.cu, <name>.h) and their registration `<name>_glue` (<name>_glue.cc).

    `family` is their folder, `name` when not given; `arguments` are what they include of
    //rtp_llm/kernels/common. nvidia_only: not for ROCm. `kernel_deps` and `glue_deps`: what else the
    kernels and the registration call.
    `nvidia_srcs`: kernels that are not for ROCm, which those of `srcs` launch.
    `marked`: RTP_LLM_OPERATOR marks the kernels, and the registration is made from that; `glue_srcs`
    register others by hand.
    """
    folder = "//rtp_llm/kernels/common:"
    stem = "%s/%s" % (family or name, name)
    library = cuda_library if nvidia_only else gpu_library
    library(
        name = name,
        srcs = (srcs or [stem + ".cu"]) + select({
            "//arch_config:cuda": nvidia_srcs,
            "//conditions:default": [],
        }),
        hdrs = [stem + ".h"] + private_hdrs,
        deps = [":gpu"] + kernel_deps + [folder + given for given in arguments],
    )
    glue = dict(
        name = name + "_glue",
        deps = [
            ":" + name,
            ":on_device",
        ] + glue_deps + [folder + given + "_checks" for given in arguments],
    )
    if marked:
        generated_glue(device = "cuda", kernels = srcs or [stem + ".cu"], srcs = glue_srcs, **glue)
    else:
        rtp_glue_library(srcs = [stem + "_glue.cc"], **glue)

def gpu_test(name, srcs, deps = [], **kwargs):
    """pytest with its tensors on the GPU that the build is for; skipped on a machine without one."""
    rtp_py_test(
        name = name,
        srcs = srcs,
        args = ["-p", "rtp_llm.testing.gpu"],
        tags = ["gpu"],
        deps = deps + ["//rtp_llm/testing:gpu"],
        **kwargs
    )
