"""What a build rule has to know of the SYCL toolkit: @local_xpu//:toolkit says it."""

load("@cc_rules//:defs.bzl", "CcInfo", "cc_common")

SyclToolkitInfo = provider(fields = {
    "ahead_of_time": "whether there is a compiler for device code; otherwise it is SPIR-V",
    "compiler": "depset of the files that the SPIR-V follows from besides its source",
    "headers": "CcInfo of the SYCL headers",
    "link": "CcInfo of what device code needs at link time",
    "version": "what the toolkit calls itself, or why there is none",
})

def _sycl_toolkit(ctx):
    return [SyclToolkitInfo(
        ahead_of_time = ctx.attr.ahead_of_time,
        compiler = depset(ctx.files.compiler),
        headers = ctx.attr.headers[CcInfo],
        link = cc_common.merge_cc_infos(cc_infos = [dep[CcInfo] for dep in ctx.attr.link]),
        version = ctx.attr.version,
    )]

sycl_toolkit = rule(
    implementation = _sycl_toolkit,
    attrs = {
        "ahead_of_time": attr.bool(mandatory = True),
        "compiler": attr.label_list(allow_files = True),
        "headers": attr.label(mandatory = True, providers = [CcInfo]),
        "link": attr.label_list(providers = [CcInfo]),
        "version": attr.string(mandatory = True),
    },
)

def _inert(ctx):
    info = SyclToolkitInfo(ahead_of_time = False, compiler = depset(), headers = CcInfo(), link = CcInfo(), version = ctx.attr.why)
    return [info, CcInfo()]

inert = rule(
    implementation = _inert,
    attrs = {"why": attr.string(mandatory = True)},
    doc = "What each public target of @local_xpu is in a build for another device.",
)
