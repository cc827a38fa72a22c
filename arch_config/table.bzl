"""The table of devices as files, for programs and tests."""

load(":devices.bzl", "DEVICES")
load(":flags.bzl", "StringFlagInfo")

def targets_of(device, flag):
    """What a wheel says that it has GPU code for (sm_90a, gfx90a, spir64); `flag` may be None."""
    targets = DEVICES[device].targets
    return [targets.prefix + item for item in flag[StringFlagInfo].items] if targets else []

def _write(ctx, value):
    ctx.actions.write(ctx.outputs.out, json.encode_indent(value, indent = "  ") + "\n")

def _devices_json(ctx):
    _write(ctx, DEVICES)

def _targets_json(ctx):
    _write(ctx, {device: targets_of(device, flag) for flag, device in ctx.attr.flags.items()})

devices_json = rule(
    implementation = _devices_json,
    attrs = {"out": attr.output(mandatory = True)},
)

targets_json = rule(
    implementation = _targets_json,
    attrs = {
        "flags": attr.label_keyed_string_dict(providers = [StringFlagInfo]),
        "out": attr.output(mandatory = True),
    },
)
