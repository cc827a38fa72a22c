"""Checks of the source tree: what ruff, mypy, clang-format and buildifier do not know."""
