"""sycl_library: device code, compiled ahead of time by icpx, or to SPIR-V by the packages' compiler."""

load("@cc_rules//:defs.bzl", "CcInfo", "cc_common", "find_cpp_toolchain")
load("@local_python//:defs.bzl", "PYTHON")
load("//3rdparty/gpus/xpu:toolkit.bzl", "SyclToolkitInfo")
load("//arch_config:devices.bzl", "only_on")
load("//arch_config:flags.bzl", "StringFlagInfo")

# What the toolchain of oneAPI calls its flags for device code (//3rdparty/gpus/sycl:toolchain.bzl).
_FEATURE = "xpu_sycl_compile"

def _compile_spirv(ctx, src, headers):
    """The kernels of `src`: C++ that registers them under the name of the file, and the folder of the modules."""
    stem = "_programs/%s/%s" % (ctx.label.name, src.basename)
    out = ctx.actions.declare_file(stem)
    modules = ctx.actions.declare_directory(stem[:-len(".cc")] + "_modules")
    args = ctx.actions.args()
    args.add_all(["-I", "-B", ctx.file._compile_spirv])
    args.add("--compiler", ctx.executable._spirv_compiler)
    args.add("--output", out)

    # A directory would be expanded to its files.
    args.add("--modules", modules.path)
    args.add("--root", ctx.bin_dir.path)
    args.add(src)
    args.add_all(headers)
    ctx.actions.run(
        executable = PYTHON,
        arguments = [args],
        # The compiler's bytes are a part of the key.
        inputs = depset([ctx.file._compile_spirv, src], transitive = [headers, ctx.attr.toolkit[SyclToolkitInfo].compiler]),
        outputs = [out, modules],
        tools = [ctx.executable._spirv_compiler],
        mnemonic = "SyclSpirv",
        progress_message = "Compiling %s to SPIR-V" % src.short_path,
    )
    return out, modules

def _own_headers(ctx, context):
    """The repository's own headers; toolkit headers exist where the code is compiled."""
    headers = [header for header in context.headers.to_list() if not header.owner.workspace_name]
    return depset(ctx.files.hdrs + headers)

def _sycl_library(ctx):
    toolkit = ctx.attr.toolkit[SyclToolkitInfo]
    modules = []
    targets = ctx.attr._sycl_target[StringFlagInfo]
    deps = [dep[CcInfo] for dep in ctx.attr.deps]
    context = cc_common.merge_cc_infos(cc_infos = deps).compilation_context
    if toolkit.ahead_of_time:
        srcs = ctx.files.srcs
        contexts = [context, toolkit.headers.compilation_context]
        requested = [_FEATURE]
        link = [toolkit.link]
    else:
        if targets.value != "spir64":
            fail("%s: --%s=%s needs icpx, and this build has the %s. Install oneAPI (RTP_LLM_SYCL=oneapi), or leave the flag at spir64" %
                 (ctx.label, ctx.attr._sycl_target.label, targets.value, toolkit.version))
        compiled = [_compile_spirv(ctx, src, _own_headers(ctx, context)) for src in ctx.files.srcs]
        srcs = [out for out, _ in compiled]
        modules = [folder for _, folder in compiled]
        contexts = [ctx.attr._program[CcInfo].compilation_context]
        requested = []
        link = [ctx.attr._program[CcInfo]]
    cc_toolchain = find_cpp_toolchain(ctx)
    features = cc_common.configure_features(
        ctx = ctx,
        cc_toolchain = cc_toolchain,
        requested_features = ctx.features + requested,
        unsupported_features = ctx.disabled_features,
    )
    _, outputs = cc_common.compile(
        actions = ctx.actions,
        cc_toolchain = cc_toolchain,
        compilation_contexts = contexts,
        feature_configuration = features,
        name = ctx.label.name,
        private_hdrs = ctx.files.hdrs,
        srcs = srcs,
        user_compile_flags = ["-fvisibility=hidden", "-Wall", "-Wextra", "-Werror"],
    )
    linking_context, _ = cc_common.create_linking_context_from_compilation_outputs(
        actions = ctx.actions,
        # Nobody calls what is here: the run time looks it up by name.
        alwayslink = True,
        cc_toolchain = cc_toolchain,
        compilation_outputs = outputs,
        disallow_dynamic_library = True,
        feature_configuration = features,
        linking_contexts = [info.linking_context for info in deps + link],
        name = ctx.label.name,
        # The link of a program with device code in it is a compilation too, and of that program alone.
        user_link_flags = ["-fsycl", "-fsycl-targets=" + targets.value] if toolkit.ahead_of_time else [],
    )
    return [
        DefaultInfo(files = depset(outputs.pic_objects + outputs.objects)),
        CcInfo(linking_context = linking_context),
        OutputGroupInfo(spirv = depset(modules)),
    ]

_sycl_library_rule = rule(
    implementation = _sycl_library,
    attrs = {
        "deps": attr.label_list(providers = [CcInfo]),
        "hdrs": attr.label_list(allow_files = [".h"]),
        "srcs": attr.label_list(allow_files = [".cc"], mandatory = True),
        "toolkit": attr.label(mandatory = True, providers = [SyclToolkitInfo]),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
        "_compile_spirv": attr.label(default = "//bazel:compile_spirv.py", allow_single_file = True),
        "_program": attr.label(default = "//rtp_llm/kernels/xpu/runtime:program"),
        # Built like all else: it runs on the machine that it is built on, and wants the device's libsycl.
        "_spirv_compiler": attr.label(
            default = "//rtp_llm/kernels/xpu/runtime:spirv_compiler",
            cfg = "target",
            executable = True,
        ),
        "_sycl_target": attr.label(default = "//arch_config:sycl_target"),
    },
    fragments = ["cpp"],
    provides = [CcInfo],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
)

def sycl_library(name, visibility = ["//visibility:public"], target_compatible_with = [], **kwargs):
    """Kernels as free functions: each of `srcs` is one program, named like the file without its .cc.

    Ahead of time icpx compiles `srcs` for //arch_config:sycl_target. Without icpx the library carries
    SPIR-V, a module for each kernel (the output group `spirv` has the folders of them), and the driver
    compiles those that run. //rtp_llm/kernels/xpu/runtime finds the kernels in either case.
    """
    _sycl_library_rule(
        name = name,
        target_compatible_with = target_compatible_with + only_on("xpu"),
        toolkit = "//3rdparty/gpus/xpu:toolkit",
        visibility = visibility,
        **kwargs
    )
