"""The local face of @rules_python: the Python rules that Bazel 4.2 to 7 have built in."""

py_binary = native.py_binary
py_library = native.py_library
py_runtime = native.py_runtime
py_test = native.py_test
