"""The local face of @rules_python//python:pip.bzl, under the names of rules_python 1.7."""

load(":defs.bzl", "py_binary", "py_test")

def compile_pip_requirements(
        name,
        src,
        requirements_txt = None,
        data = [],
        env = {},
        extra_args = [],
        tags = [],
        visibility = ["//visibility:private"]):
    """pip-tools makes the lock `requirements_txt` (NAME.txt) from `src`.

    `bazel run NAME.update` writes it, `bazel test NAME_test` compares pins and hashes; both ask the
    package index. The real rule compares comments as well, which name the inputs from the root.
    """
    lock = requirements_txt or name + ".txt"
    native.filegroup(
        name = name,
        srcs = data + [lock],
        visibility = visibility,
    )
    attrs = {
        "args": ["--src=$(rootpath %s)" % src, "$(rootpath %s)" % lock] + extra_args,
        "data": data + [lock, src],
        "env": env,
        "legacy_create_init": 0,
        "main": "//3rdparty/rules_python:pip_compile.py",
        "srcs": ["//3rdparty/rules_python:pip_compile.py"],
        "tags": tags + ["no-remote-exec", "no-sandbox", "requires-network"],
        "visibility": visibility,
        "deps": ["//deps:python"],
    }
    py_binary(name = name + ".update", **attrs)
    py_test(name = name + "_test", **attrs)
