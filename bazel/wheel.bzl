"""The wheel of a device."""

load("@local_python//:defs.bzl", "PYTHON_TAG")
load("@rules_python//python:defs.bzl", "PyInfo")
load("//arch_config:devices.bzl", "DEVICES", "only_on")
load("//arch_config:flags.bzl", "StringFlagInfo")
load("//arch_config:table.bzl", "targets_of")

def _goes_into_the_wheel(file):
    return file.short_path.startswith("rtp_llm/") and file.extension not in ["cc", "h"]

def _rtp_wheel(ctx):
    row = DEVICES[ctx.attr.device]
    if PYTHON_TAG not in row.python_tags:
        fail("%s wheels are for %s; RTP_LLM_PYTHON is %s" % (ctx.attr.device, ", ".join(row.python_tags), PYTHON_TAG))

    # The file's name ends with the platform that the libraries need, which is known only once they
    # are linked: so the output is a folder with the wheel in it.
    out = ctx.actions.declare_directory(ctx.label.name)
    runfiles = ctx.attr.package[DefaultInfo].default_runfiles.files.to_list()
    files = [file for file in runfiles if _goes_into_the_wheel(file)]
    args = ctx.actions.args()
    args.use_param_file("@%s", use_always = True)
    args.set_param_file_format("multiline")
    args.add_all("--output", [out], expand_directories = False)
    args.add("--device", ctx.attr.device)
    args.add("--init", ctx.file.init)
    args.add("--license", ctx.file.license)
    args.add("--lock", ctx.file.lock)
    args.add("--python-tag", PYTHON_TAG)
    args.add("--readme", ctx.file.readme)
    args.add("--schema-library", ctx.file.schema_library)
    args.add("--status", ctx.info_file)
    args.add("--version-local", row.version_local)
    for option, values in [
        ("--exclude", row.excluded),
        ("--machine", row.machines),
        ("--rename", ["%s=%s" % pair for pair in row.renamed.items()]),
        ("--needed", row.needed),
        ("--target", targets_of(ctx.attr.device, ctx.attr.targets)),
        ("--wanted", ctx.files.wanted),
    ]:
        for value in values:
            args.add(option, value)
    for file in files:
        args.add("--file", "%s=%s" % (file.short_path, file.path))
    named = [ctx.file.init, ctx.file.license, ctx.file.lock, ctx.file.readme, ctx.file.schema_library, ctx.info_file]
    ctx.actions.run(
        executable = ctx.executable._pack,
        arguments = [args],
        inputs = files + named + ctx.files.wanted,
        outputs = [out],
        mnemonic = "RtpWheel",
        progress_message = "Packing the %s wheel" % ctx.attr.device,
    )
    return [DefaultInfo(files = depset([out]), runfiles = ctx.runfiles([out]))]

_wheel = rule(
    implementation = _rtp_wheel,
    attrs = {
        "device": attr.string(mandatory = True),
        "init": attr.label(allow_single_file = True, mandatory = True),
        "license": attr.label(allow_single_file = True, mandatory = True),
        "lock": attr.label(allow_single_file = True, mandatory = True),
        "package": attr.label(mandatory = True, providers = [PyInfo]),
        "readme": attr.label(allow_single_file = True, mandatory = True),
        "schema_library": attr.label(allow_single_file = True, mandatory = True),
        "targets": attr.label(providers = [StringFlagInfo]),
        "wanted": attr.label_list(allow_files = True, mandatory = True),
        "_pack": attr.label(default = "//tools/wheel:pack", executable = True, cfg = "exec"),
    },
)

def rtp_wheel(name, device):
    """A folder with the wheel for `device`; incompatible in builds for another device."""
    row = DEVICES[device]
    _wheel(
        name = name,
        device = device,
        init = "//rtp_llm:__init__.py",
        license = "//:LICENSE",
        lock = select({
            "@platforms//cpu:aarch64": row.aarch64_lock or row.lock,
            "//conditions:default": row.lock,
        }),
        package = "//rtp_llm",
        readme = "//:README.md",
        schema_library = "//rtp_llm/kernels:librtp_llm_cpu.so",
        target_compatible_with = only_on(device),
        targets = row.targets.flag if row.targets else None,
        wanted = ["//deps:requirements_base.in", "//deps:requirements_%s.in" % device],
    )
