"""Targets that stand for a Python package of whatever device the build is for."""

load("//arch_config:devices.bzl", "DEVICES")

def _unbuildable(ctx):
    fail("The %s build is not possible yet; it lacks %s." % (ctx.attr.device, ctx.attr.missing))

unbuildable = rule(
    implementation = _unbuildable,
    attrs = {"device": attr.string(), "missing": attr.string()},
    doc = "What a device without a lock gets in the place of its packages.",
)

def device_label(name):
    """select(): the label of target `name` in the package repository of the build's device."""
    return select({
        "//arch_config:" + device: "@pip_%s//:%s" % (device, name) if row.lock else "//deps:unbuildable_" + device
        for device, row in DEVICES.items()
    })
