# SPDX-License-Identifier: Apache-2.0
"""Checks of the source tree that ruff, mypy, clang-format and buildifier do not make."""
