"""@sycl_packages: the SYCL headers, run time and kernel compiler as PyPI has them, from a hashed lock.

A repository of its own, so that an edit of the targets in @local_xpu does not install 1.5 GB again.
Nothing but @local_xpu asks for it, and only in a build for xpu without oneAPI.
"""

load("//3rdparty/py:environment.bzl", "ENVIRONMENT_SCRIPT", "ENVIRONMENT_VARIABLES", "make_environment")

def _sycl_packages(rctx):
    failure = make_environment(rctx, rctx.attr._script, "environment", [rctx.attr.lock], size = "1.5 GB")
    if failure:
        fail("@%s: pip install failed; pip's configuration decides where it looks (pip config list)\n%s" %
             (rctx.name, failure))

    # Other contents for other packages: what makes @local_xpu look again.
    rctx.file("BUILD.bazel", "# %s\n" % rctx.path("environment").realpath)

sycl_packages = repository_rule(
    implementation = _sycl_packages,
    attrs = {
        "lock": attr.label(mandatory = True, allow_single_file = True),
        "_script": ENVIRONMENT_SCRIPT,
    },
    environ = ENVIRONMENT_VARIABLES,
)
