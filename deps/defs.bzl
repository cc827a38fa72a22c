"""What stands for the packages of a device that has none."""

def _unbuildable(ctx):
    fail("The %s build is not possible yet; it lacks %s." % (ctx.attr.device, ctx.attr.missing))

unbuildable = rule(
    implementation = _unbuildable,
    attrs = {"device": attr.string(), "missing": attr.string()},
    doc = "What a device without a lock gets in the place of its packages.",
)
