"""The C++ toolchain of oneAPI: compiler.py in the place of gcc, and a feature for device code."""

load("@cc_rules//:defs.bzl", "cc_common")
load(
    "@cc_rules//:toolchain.bzl",
    "ACTION_NAMES",
    "CcToolchainConfigInfo",
    "feature",
    "flag_group",
    "flag_set",
    "tool_path",
    "with_feature_set",
)
load("//arch_config:flags.bzl", "StringFlagInfo")

_CPP_COMPILE = [
    ACTION_NAMES.cpp_compile,
    ACTION_NAMES.cpp_header_parsing,
    ACTION_NAMES.cpp_module_compile,
]

_COMPILE = _CPP_COMPILE + [
    ACTION_NAMES.assemble,
    ACTION_NAMES.c_compile,
    ACTION_NAMES.preprocess_assemble,
]

_LINK = [
    ACTION_NAMES.cpp_link_dynamic_library,
    ACTION_NAMES.cpp_link_executable,
    ACTION_NAMES.cpp_link_nodeps_dynamic_library,
]

_COMPILE_FLAGS = [
    "-U_FORTIFY_SOURCE",
    "-fstack-protector",
    "-fno-omit-frame-pointer",
    # icpx's own default takes NaN and infinity for impossible.
    "-ffp-model=precise",
    # The names of gcc's warnings in BUILD files.
    "-Wno-unknown-warning-option",
    # The same bytes at any time and place.
    "-no-canonical-prefixes",
    "-Wno-builtin-macro-redefined",
    '-D__DATE__="redacted"',
    '-D__TIME__="redacted"',
    '-D__TIMESTAMP__="redacted"',
]

_OPT_FLAGS = ["-g0", "-O2", "-DNDEBUG", "-D_FORTIFY_SOURCE=1", "-ffunction-sections", "-fdata-sections"]

# What run-time compilation does too (//rtp_llm/kernels/xpu/runtime:build.cc).
_SYCL_FLAGS = ["-fsycl", "-fno-sycl-dead-args-optimization"]

def _flags(actions, flags, mode = None):
    return flag_set(
        actions = actions,
        flag_groups = [flag_group(flags = flags)],
        with_features = [with_feature_set(features = [mode])] if mode else [],
    )

def _sycl_toolchain_config(ctx):
    targets = "-fsycl-targets=" + ctx.attr._sycl_target[StringFlagInfo].value
    features = [
        feature(name = "opt"),
        feature(name = "dbg"),
        feature(name = "fastbuild"),
        feature(name = "supports_dynamic_linker", enabled = True),
        feature(name = "supports_pic", enabled = True),
        feature(
            name = "default_compile_flags",
            enabled = True,
            flag_sets = [
                _flags(_COMPILE, _COMPILE_FLAGS),
                _flags(_COMPILE, _OPT_FLAGS, "opt"),
                _flags(_COMPILE, ["-g"], "dbg"),
            ],
        ),
        feature(
            name = "default_link_flags",
            enabled = True,
            flag_sets = [_flags(_LINK, ["-Wl,-z,relro,-z,now", "-no-canonical-prefixes"])],
        ),
        # Off unless a target holds device code: sycl_library asks for it.
        feature(
            name = "xpu_sycl_compile",
            flag_sets = [_flags(_CPP_COMPILE, _SYCL_FLAGS + [targets])],
        ),
    ]
    tools = {
        "ar": ctx.attr.binutils + "/ar",
        "cpp": "compiler",
        "gcc": "compiler",
        "gcov": ctx.attr.binutils + "/gcov",
        "ld": ctx.attr.binutils + "/ld",
        "nm": ctx.attr.binutils + "/nm",
        "objcopy": ctx.attr.binutils + "/objcopy",
        "objdump": ctx.attr.binutils + "/objdump",
        "strip": ctx.attr.binutils + "/strip",
    }
    return cc_common.create_cc_toolchain_config_info(
        ctx = ctx,
        abi_libc_version = "local",
        abi_version = "local",
        compiler = "icpx",
        cxx_builtin_include_directories = ctx.attr.include_directories,
        features = features,
        host_system_name = "local",
        target_cpu = "k8",
        target_libc = "local",
        target_system_name = "local",
        tool_paths = [tool_path(name = name, path = path) for name, path in tools.items()],
        toolchain_identifier = "oneapi",
    )

sycl_toolchain_config = rule(
    implementation = _sycl_toolchain_config,
    attrs = {
        "binutils": attr.string(mandatory = True),
        "include_directories": attr.string_list(mandatory = True),
        "_sycl_target": attr.label(default = "//arch_config:sycl_target"),
    },
    provides = [CcToolchainConfigInfo],
)
