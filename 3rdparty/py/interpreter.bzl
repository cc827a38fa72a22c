"""@local_python: the host's interpreter, its headers and its names for extension modules."""

_VERSIONS = ["3.11", "3.12", "3.13"]

_QUERY = """
import sys, sysconfig
print(sys.executable)
print('%d.%d' % sys.version_info[:2])
print(sysconfig.get_paths()['include'])
print(sysconfig.get_config_var('EXT_SUFFIX'))
"""

def _query(rctx, command):
    path = command if command.startswith("/") else rctx.which(command)
    if not path:
        return None

    # sys.executable, because a pyenv or conda shim on the PATH is a script.
    result = rctx.execute([path, "-I", "-c", _QUERY])
    if result.return_code:
        return None
    executable, version, include, suffix = result.stdout.strip().split("\n")
    if version not in _VERSIONS:
        return None
    return struct(executable = executable, version = version, include = include, suffix = suffix)

def _interpreter_repository(rctx):
    asked = rctx.os.environ.get("RTP_LLM_PYTHON")
    candidates = [asked] if asked else ["python3"] + ["python" + v for v in _VERSIONS] + ["/usr/bin/python3"]
    found = None
    for candidate in candidates:
        found = _query(rctx, candidate)
        if found:
            break
    if not found:
        fail("no Python of %s found (tried %s); set RTP_LLM_PYTHON to one" % (_VERSIONS, candidates))
    if not rctx.path(found.include + "/Python.h").exists:
        fail("%s has no headers (%s/Python.h); install python3-dev or set RTP_LLM_PYTHON" %
             (found.executable, found.include))
    rctx.symlink(found.include, "include")
    rctx.file("BUILD.bazel", """\
load("@cc_rules//:defs.bzl", "cc_library")

package(default_visibility = ["//visibility:public"])

cc_library(
    name = "headers",
    hdrs = glob(["include/**/*.h"]),
    includes = ["include"],
)
""")
    rctx.file("defs.bzl", """\
PYTHON = "%s"
EXT_SUFFIX = "%s"
PYTHON_TAG = "cp%s"
""" % (found.executable, found.suffix, found.version.replace(".", "")))

interpreter_repository = repository_rule(
    implementation = _interpreter_repository,
    environ = ["RTP_LLM_PYTHON", "PATH"],
)
