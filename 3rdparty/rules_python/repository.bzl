"""@rules_python for builds by WORKSPACE: the released rule set, or a local face of it.

RTP_LLM_RULES_PYTHON says which. `auto`, the default, is the release where it runs (Bazel 7) and can be
fetched, and the local face elsewhere: offline, and with Debian's Bazel 4.2.3. `archive` and `local`
insist on one of them. Bazel 8 and 9 take the release by MODULE.bazel.
"""

# The version of MODULE.bazel.
_ARCHIVE = struct(
    url = "https://github.com/bazel-contrib/rules_python/releases/download/1.7.0/rules_python-1.7.0.tar.gz",
    sha256 = "f609f341d6e9090b981b3f45324d05a819fd7a5a56434f849c761971ce2c47da",
    prefix = "rules_python-1.7.0",
)
_FIRST_BAZEL = 7

_LOCAL_REPOSITORIES = """\
def py_repositories():
    pass
"""

def _fetch(rctx, required):
    done = rctx.download_and_extract(
        _ARCHIVE.url,
        sha256 = _ARCHIVE.sha256,
        stripPrefix = _ARCHIVE.prefix,
        allow_fail = not required,
    )
    return done.success

def _write_local(rctx):
    rctx.file("WORKSPACE", 'workspace(name = "rules_python")\n')
    rctx.file("python/BUILD.bazel", "")
    rctx.file("python/repositories.bzl", _LOCAL_REPOSITORIES)
    rctx.file("python/builtins.bzl", "builtin_py_info = PyInfo\n")
    rctx.symlink(rctx.path(rctx.attr._local_defs), "python/defs.bzl")
    rctx.symlink(rctx.path(rctx.attr._local_pip), "python/pip.bzl")

def _rules_python_repository(rctx):
    choice = rctx.os.environ.get("RTP_LLM_RULES_PYTHON", "auto")
    if choice not in ["archive", "auto", "local"]:
        fail("RTP_LLM_RULES_PYTHON must be auto, local or archive, not %r" % choice)
    wanted = choice == "archive" or (choice == "auto" and rctx.attr.bazel >= _FIRST_BAZEL)
    if not (wanted and _fetch(rctx, required = choice == "archive")):
        _write_local(rctx)

_repository = repository_rule(
    implementation = _rules_python_repository,
    attrs = {
        "bazel": attr.int(mandatory = True),
        "_local_defs": attr.label(default = "//3rdparty/rules_python:local_defs.bzl"),
        "_local_pip": attr.label(default = "//3rdparty/rules_python:local_pip.bzl"),
    },
    environ = ["RTP_LLM_RULES_PYTHON"],
)

def rules_python_repository(name):
    """@rules_python; called by WORKSPACE."""

    # Debian's Bazel 4.2.3 has no version.
    _repository(name = name, bazel = int((native.bazel_version or "0").partition(".")[0]))
