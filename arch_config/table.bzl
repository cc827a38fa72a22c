"""The table of devices as a file, for programs and tests."""

load(":devices.bzl", "DEVICES")

def _devices_json(ctx):
    ctx.actions.write(ctx.outputs.out, json.encode_indent(DEVICES, indent = "  ") + "\n")

devices_json = rule(
    implementation = _devices_json,
    attrs = {"out": attr.output(mandatory = True)},
)
