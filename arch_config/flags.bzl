"""String flags that say what they take when they are given something else."""

# value: the flag as it was given; items: its comma-separated parts.
StringFlagInfo = provider(fields = ["items", "value"])

_SYCL_PREFIXES = ["intel_gpu_", "nvidia_gpu_", "amd_gpu_"]

def _is_cuda_arch(item):
    digits = item[:-1] if item[-1:] in ["a", "f"] else item
    return digits.isdigit() and 2 <= len(digits) and len(digits) <= 3

def _is_gfx_target(item):
    name = item.split(":")[0]
    rest = name[len("gfx"):]
    known = [c for c in rest.elems() if c in "0123456789abcdef".elems()]
    options = [option in ["sramecc+", "sramecc-", "xnack+", "xnack-"] for option in item.split(":")[1:]]
    return name.startswith("gfx") and 3 <= len(rest) and len(rest) <= 4 and len(known) == len(rest) and all(options)

def _is_sycl_target(item):
    if item in ["spir64", "spir64_gen", "spir64_x86_64"]:
        return True
    named = [item[len(prefix):] for prefix in _SYCL_PREFIXES if item.startswith(prefix)]
    return bool(named) and named[0].replace("_", "").isalnum()

# Form of a list flag: what an item has to be, the check, and how to say it.
_FORMS = {
    "cuda_arch": struct(
        valid = _is_cuda_arch,
        says = "compute capabilities without the dot, with the letter of a feature set where meant (80,90a)",
    ),
    "gfx_target": struct(
        valid = _is_gfx_target,
        says = "names of AMD processors (gfx90a,gfx942), each with its features where they matter (gfx90a:xnack-)",
    ),
    "sycl_target": struct(
        valid = _is_sycl_target,
        says = "targets of -fsycl-targets (spir64, spir64_gen, spir64_x86_64, or a processor such as intel_gpu_pvc)",
    ),
}

def _string_flag(ctx):
    value = ctx.build_setting_value
    if value not in ctx.attr.values:
        fail("%s must be one of %s, not %r" % (ctx.label, ", ".join(ctx.attr.values), value))
    return StringFlagInfo(items = [value], value = value)

string_flag = rule(
    implementation = _string_flag,
    build_setting = config.string(flag = True),
    attrs = {"values": attr.string_list(mandatory = True)},
)

def _list_flag(ctx):
    form = _FORMS[ctx.attr.form]
    items = ctx.build_setting_value.split(",")
    for index, item in enumerate(items):
        if not form.valid(item):
            fail("--%s=%s: %r is not one of the %s" % (ctx.label, ctx.build_setting_value, item, form.says))
        if item in items[:index]:
            fail("--%s=%s names %s twice" % (ctx.label, ctx.build_setting_value, item))
    return StringFlagInfo(items = items, value = ctx.build_setting_value)

list_flag = rule(
    implementation = _list_flag,
    build_setting = config.string(flag = True),
    attrs = {"form": attr.string(mandatory = True, values = _FORMS.keys())},
)
