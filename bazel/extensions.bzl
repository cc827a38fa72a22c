"""What MODULE.bazel needs of the host: the interpreter, and which tools of tests it has."""

load("//3rdparty/py:interpreter.bzl", "interpreter_repository")
load("//bazel:host_tools.bzl", "host_tools_repository")

def _host(_ctx):
    interpreter_repository(name = "local_python")
    host_tools_repository(name = "host_tools")

host = module_extension(implementation = _host)
