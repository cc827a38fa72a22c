"""What rtp_llm/ops/generate.py writes: C++ from the declarations of operators."""

load("@local_python//:defs.bzl", "PYTHON")
load("//bazel:defs.bzl", "rtp_glue_library")

def generated(name, out, arguments, srcs = []):
    """The file `out`; `arguments` follow its path on the generator's command line."""
    native.genrule(
        name = name,
        srcs = srcs + ["//rtp_llm/ops:declarations"],
        outs = [out],
        cmd = "PYTHONPATH=. PYTHONDONTWRITEBYTECODE=1 %s -s -m rtp_llm.ops.generate %s" % (PYTHON, arguments % "$@"),
    )

def generated_glue(name, device, kernels, deps, srcs = [], **kwargs):
    """Registers the operators that RTP_LLM_OPERATOR marks in the sources `kernels` of a device.

    `srcs` register others by hand.
    """
    glue_source(name, device, kernels)
    rtp_glue_library(
        name = name,
        srcs = [":%s.cc" % name] + srcs,
        deps = deps,
        **kwargs
    )

def glue_source(name, device, kernels):
    """<name>.cc, which does so."""
    places = " ".join(["$(location %s)" % kernel for kernel in kernels])
    generated(
        name = name + "_source",
        out = name + ".cc",
        arguments = "glue %%s %s %s" % (device, places),
        srcs = kernels,
    )
