"""What a build rule has to know of a GPU toolkit: @local_cuda//:toolkit and @local_rocm//:toolkit say it."""

load("@cc_rules//:defs.bzl", "CcInfo")

GpuToolkitInfo = provider(fields = {
    "compiler": "absolute path of nvcc or hipcc; None in a build for another device",
    "environment": "environment variables of the compiler",
    "known_targets": "the GPUs that it compiles for",
    "language": "cuda or hip",
    "stamp": "file that changes with the toolkit: the toolkit itself is not among the inputs of actions",
    "version": "what the compiler calls itself, or why there is none",
})

def _gpu_toolkit(ctx):
    info = GpuToolkitInfo(
        compiler = ctx.attr.compiler,
        environment = ctx.attr.environment,
        known_targets = ctx.attr.known_targets,
        language = ctx.attr.language,
        stamp = ctx.file.stamp,
        version = ctx.attr.version,
    )
    return [info, ctx.attr.runtime[CcInfo]]

gpu_toolkit = rule(
    implementation = _gpu_toolkit,
    attrs = {
        "compiler": attr.string(mandatory = True),
        "environment": attr.string_dict(),
        "known_targets": attr.string_list(mandatory = True),
        "language": attr.string(mandatory = True, values = ["cuda", "hip"]),
        "runtime": attr.label(mandatory = True, providers = [CcInfo]),
        "stamp": attr.label(mandatory = True, allow_single_file = True),
        "version": attr.string(mandatory = True),
    },
)

def _inert(ctx):
    info = GpuToolkitInfo(
        compiler = None,
        environment = {},
        known_targets = [],
        language = None,
        stamp = None,
        version = ctx.attr.why,
    )
    return [info, CcInfo()]

inert = rule(
    implementation = _inert,
    attrs = {"why": attr.string(mandatory = True)},
    doc = "What each public target of a toolkit's repository is in a build for another device.",
)
