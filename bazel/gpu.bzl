"""CUDA C++: .cu files through nvcc under --config=cuda, the same ones through hipcc under --config=rocm."""

load("@cc_rules//:defs.bzl", "CcInfo", "cc_common", "find_cpp_toolchain")
load("//3rdparty/gpus:toolkit.bzl", "GpuToolkitInfo")
load("//arch_config:flags.bzl", "StringFlagInfo")

_TOOLKITS = {
    "cuda": "@local_cuda//:toolkit",
    "rocm": "@local_rocm//:toolkit",
}

_NVCC_FLAGS = [
    # Temporary files beside the object: their names are in it, and have to be the same in every build.
    "--objdir-as-tempdir",
    # constexpr functions of the standard library in kernels, as hipcc allows by itself.
    "--expt-relaxed-constexpr",
    "-Werror=all-warnings",
    "-Xcompiler=-fPIC,-fvisibility=hidden,-fvisibility-inlines-hidden,-Wall,-Wextra,-Werror",
]

_HIPCC_FLAGS = [
    "-fPIC",
    "-fvisibility=hidden",
    "-fvisibility-inlines-hidden",
    "-Wall",
    "-Wextra",
    "-Werror",
]

def _require_known(label, toolkit, flag, targets):
    """Refuses what the compiler lacks, before anything is compiled."""
    for target in targets:
        base = target.split(":")[0]
        plain = base[:-1] if toolkit.language == "cuda" and base[-1:] in ["a", "f"] else base
        if plain not in toolkit.known_targets:
            fail("%s: %s (%s) cannot compile for %s of --%s; it knows %s. Take a toolkit that knows it, or set --%s" % (
                label,
                toolkit.compiler,
                toolkit.version,
                target,
                flag.label,
                ", ".join(toolkit.known_targets),
                flag.label,
            ))

def _gencode(targets):
    """Machine code for each target; PTX, for GPUs to come, of the last that is not bound to its own."""
    plain = [target for target in targets if target.isdigit()]
    flags = []
    for target in targets:
        codes = ["sm_" + target]
        if plain and target == plain[-1]:
            codes.append("compute_" + target)
        flags.append("-gencode=arch=compute_%s,code=[%s]" % (target, ",".join(codes)))
    return flags

def _nvcc_arguments(args, src, targets, cc_toolchain):
    args.add_all(_gencode(targets))
    args.add("-ccbin", cc_toolchain.compiler_executable)
    args.add_all(_NVCC_FLAGS)

    # Names of what a file keeps to itself are made from its path: from the one that every clone has.
    args.add(src, format = "-Xcudafe=--orig_src_path_name=%s")

def _hipcc_arguments(args, targets):
    args.add("-x", "hip")
    args.add_all(targets, format_each = "--offload-arch=%s")
    args.add_all(_HIPCC_FLAGS)

def _compile(ctx, toolkit, targets, cc_toolchain, context, src):
    object = ctx.actions.declare_file("_objs/%s/%s.o" % (ctx.label.name, src.basename))
    args = ctx.actions.args()
    if toolkit.language == "cuda":
        _nvcc_arguments(args, src, targets, cc_toolchain)
    else:
        _hipcc_arguments(args, targets)
    args.add_all(toolkit.flags)
    args.add_all(["-std=c++17", "-O3", "-DNDEBUG", "-I.", "-I" + ctx.bin_dir.path])
    args.add_all(context.defines, format_each = "-D%s")
    args.add_all(context.includes, format_each = "-I%s")
    args.add_all(context.quote_includes, format_each = "-I%s")
    args.add_all(context.system_includes, before_each = "-isystem")
    args.add("-c", src)
    args.add("-o", object)
    ctx.actions.run(
        executable = toolkit.compiler,
        arguments = [args],
        env = dict(toolkit.environment, PATH = "/usr/local/bin:/usr/bin:/bin"),
        inputs = depset(
            ctx.files.srcs + ctx.files.hdrs + toolkit.files + [toolkit.stamp],
            transitive = [context.headers, cc_toolchain.all_files],
        ),
        outputs = [object],
        mnemonic = "CudaCompile" if toolkit.language == "cuda" else "HipCompile",
        progress_message = "Compiling %s for %s" % (src.short_path, ", ".join(targets)),
    )
    return object

def _linking_context(ctx, cc_toolchain, objects, dependencies):
    features = cc_common.configure_features(
        ctx = ctx,
        cc_toolchain = cc_toolchain,
        requested_features = ctx.features,
        unsupported_features = ctx.disabled_features,
    )
    linking_context, _ = cc_common.create_linking_context_from_compilation_outputs(
        actions = ctx.actions,
        name = ctx.label.name,
        feature_configuration = features,
        cc_toolchain = cc_toolchain,
        compilation_outputs = cc_common.create_compilation_outputs(
            objects = depset(objects),
            pic_objects = depset(objects),
        ),
        linking_contexts = [dependencies.linking_context],
        # A kernel registers itself with the runtime when the library is loaded.
        alwayslink = True,
        disallow_dynamic_library = True,
    )
    return linking_context

def _device_library(ctx):
    toolkit = ctx.attr.toolkit[GpuToolkitInfo]
    if not toolkit.compiler:
        fail("%s: %s" % (ctx.label, toolkit.version))
    flag = ctx.attr._cuda_arch if toolkit.language == "cuda" else ctx.attr._gfx_target
    targets = flag[StringFlagInfo].items
    _require_known(ctx.label, toolkit, flag, targets)
    cc_toolchain = find_cpp_toolchain(ctx)
    deps = [dep[CcInfo] for dep in ctx.attr.deps]
    context = cc_common.merge_cc_infos(cc_infos = deps).compilation_context
    objects = [_compile(ctx, toolkit, targets, cc_toolchain, context, src) for src in ctx.files.srcs]
    own = CcInfo(compilation_context = cc_common.create_compilation_context(headers = depset(ctx.files.hdrs)))
    everything = cc_common.merge_cc_infos(cc_infos = deps + [own, ctx.attr.toolkit[CcInfo]])
    return [
        DefaultInfo(files = depset(objects)),
        CcInfo(
            compilation_context = everything.compilation_context,
            linking_context = _linking_context(ctx, cc_toolchain, objects, everything),
        ),
    ]

_device_library_rule = rule(
    implementation = _device_library,
    attrs = {
        "deps": attr.label_list(providers = [CcInfo]),
        "hdrs": attr.label_list(allow_files = [".cuh", ".h"]),
        "srcs": attr.label_list(allow_files = [".cu"], mandatory = True),
        "toolkit": attr.label(mandatory = True, providers = [GpuToolkitInfo]),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
        "_cuda_arch": attr.label(default = "//arch_config:cuda_arch"),
        "_gfx_target": attr.label(default = "//arch_config:gfx_target"),
    },
    fragments = ["cpp"],
    provides = [CcInfo],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
)

def _library_on(devices, name, visibility = ["//visibility:public"], target_compatible_with = [], **kwargs):
    """The library in builds for `devices`; in others, incompatible, and without a look at any toolkit."""
    toolkits = {"//arch_config:" + device: _TOOLKITS[device] for device in devices}
    toolkits["//conditions:default"] = "//3rdparty/gpus:no_toolkit"
    compatible = {"//arch_config:" + device: [] for device in devices}
    compatible["//conditions:default"] = ["//arch_config:incompatible"]
    _device_library_rule(
        name = name,
        target_compatible_with = target_compatible_with + select(compatible),
        toolkit = select(toolkits),
        visibility = visibility,
        **kwargs
    )

def cuda_library(name, **kwargs):
    """Objects of nvcc, for the deps of C++ rules; its //arch_config:cuda_arch says for which GPUs."""
    _library_on(["cuda"], name, **kwargs)

def hip_library(name, **kwargs):
    """Objects of hipcc, for the deps of C++ rules; its //arch_config:gfx_target says for which GPUs."""
    _library_on(["rocm"], name, **kwargs)

def gpu_library(name, **kwargs):
    """One source for both: a cuda_library or a hip_library, as the build's device says."""
    _library_on(["cuda", "rocm"], name, **kwargs)
