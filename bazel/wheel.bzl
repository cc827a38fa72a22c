"""The wheel of a device."""

load("@local_python//:defs.bzl", "PYTHON_TAG")
load("//arch_config:devices.bzl", "DEVICES", "only_on")

def _goes_into_the_wheel(file):
    return file.short_path.startswith("rtp_llm/") and file.extension not in ["cc", "h"]

def _rtp_wheel(ctx):
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
    args.add("--ops-library", ctx.file.ops_library)
    args.add("--python-tag", PYTHON_TAG)
    args.add("--requirements", ctx.file.requirements)
    args.add("--status", ctx.info_file)
    args.add("--version-local", ctx.attr.version_local)
    for file in files:
        args.add("--file", "%s=%s" % (file.short_path, file.path))
    named = [ctx.file.init, ctx.file.license, ctx.file.lock, ctx.file.ops_library, ctx.file.requirements]
    ctx.actions.run(
        executable = ctx.executable._pack,
        arguments = [args],
        inputs = files + named + [ctx.info_file],
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
        "ops_library": attr.label(allow_single_file = True, mandatory = True),
        "package": attr.label(mandatory = True, providers = [PyInfo]),
        "requirements": attr.label(allow_single_file = True, mandatory = True),
        "version_local": attr.string(mandatory = True),
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
        # In a build for another device the target is skipped, but what it names is still analysed.
        lock = select({
            "//arch_config:" + device: row.lock or "//deps:unbuildable_" + device,
            "//conditions:default": "//deps:requirements_base.in",
        }),
        ops_library = "//rtp_llm:ops_library_file",
        package = "//rtp_llm",
        requirements = "//deps:requirements_base.in",
        target_compatible_with = only_on(device),
        version_local = row.version_local,
    )
