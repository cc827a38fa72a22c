"""What a build rule has to know of a GPU toolkit: @local_cuda//:toolkit and @local_rocm//:toolkit say it."""

load("@cc_rules//:defs.bzl", "CcInfo")

GpuToolkitInfo = provider(fields = {
    "compiler": "absolute path of nvcc, hipcc or clang++; None in a build for another device",
    "environment": "environment variables of the compiler",
    "files": "what the flags name",
    "flags": "of every call, besides those of the language",
    "known_targets": "the GPUs that it compiles for",
    "language": "cuda or hip",
    "stamp": "file that changes with the toolkit: the toolkit itself is not among the inputs of actions",
    "version": "what the compiler calls itself, or why there is none",
})

def _gpu_toolkit(ctx):
    flags = list(ctx.attr.flags)
    if ctx.files.device_libraries:
        flags.append("--rocm-device-lib-path=" + ctx.files.device_libraries[0].dirname)
    if ctx.files.tools:
        flags.append("-B" + ctx.files.tools[0].dirname)
    info = GpuToolkitInfo(
        compiler = ctx.attr.compiler,
        environment = ctx.attr.environment,
        files = ctx.files.device_libraries + ctx.files.tools,
        flags = flags,
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
        # Bitcode that the compiler links, and programs that it calls, where it does not find them itself.
        "device_libraries": attr.label_list(allow_files = [".bc"]),
        "environment": attr.string_dict(),
        "flags": attr.string_list(),
        "known_targets": attr.string_list(mandatory = True),
        "language": attr.string(mandatory = True, values = ["cuda", "hip"]),
        "runtime": attr.label(mandatory = True, providers = [CcInfo]),
        "stamp": attr.label(mandatory = True, allow_single_file = True),
        "tools": attr.label_list(allow_files = True),
        "version": attr.string(mandatory = True),
    },
)

def _inert(ctx):
    info = GpuToolkitInfo(
        compiler = None,
        environment = {},
        files = [],
        flags = [],
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
