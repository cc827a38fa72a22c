"""@rules_python: a local face by default, so that a build needs no download.

RTP_LLM_RULES_PYTHON=archive takes the real project instead, which Bazel 6 and 7 accept.
"""

_ARCHIVE = struct(
    url = "https://github.com/bazelbuild/rules_python/releases/download/0.31.0/rules_python-0.31.0.tar.gz",
    sha256 = "c68bdc4fbec25de5b5493b8819cfc877c4ea299c0dcb15c244c5a00208cde311",
    prefix = "rules_python-0.31.0",
)

_LOCAL_REPOSITORIES = """\
def py_repositories():
    pass
"""

def _rules_python_repository(rctx):
    choice = rctx.os.environ.get("RTP_LLM_RULES_PYTHON", "local")
    if choice == "archive":
        rctx.download_and_extract(_ARCHIVE.url, sha256 = _ARCHIVE.sha256, stripPrefix = _ARCHIVE.prefix)
    elif choice == "local":
        rctx.file("WORKSPACE", 'workspace(name = "rules_python")\n')
        rctx.file("python/BUILD.bazel", "")
        rctx.file("python/repositories.bzl", _LOCAL_REPOSITORIES)
        rctx.file("python/builtins.bzl", "builtin_py_info = PyInfo\n")
        rctx.symlink(rctx.path(rctx.attr._local_defs), "python/defs.bzl")
    else:
        fail("RTP_LLM_RULES_PYTHON must be local or archive, not %r" % choice)

rules_python_repository = repository_rule(
    implementation = _rules_python_repository,
    attrs = {"_local_defs": attr.label(default = "//3rdparty/rules_python:local_defs.bzl")},
    environ = ["RTP_LLM_RULES_PYTHON"],
)
