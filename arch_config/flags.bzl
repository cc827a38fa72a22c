"""A string flag that names its values when it is given another."""

StringFlagInfo = provider(fields = ["value"])

def _string_flag(ctx):
    value = ctx.build_setting_value
    if value not in ctx.attr.values:
        fail("%s must be one of %s, not %r" % (ctx.label, ", ".join(ctx.attr.values), value))
    return StringFlagInfo(value = value)

string_flag = rule(
    implementation = _string_flag,
    build_setting = config.string(flag = True),
    attrs = {"values": attr.string_list(mandatory = True)},
)
