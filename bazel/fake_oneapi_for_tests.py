# SPDX-License-Identifier: Apache-2.0
"""A fake oneAPI of empty files and small scripts that @local_xpu accepts as complete."""

from __future__ import annotations

from pathlib import Path

from bazel.fake_toolkits_for_tests import write_compiler

PARTS = (
    "compiler/latest/bin/icpx",
    "compiler/latest/bin/icx",
    "compiler/latest/include/sycl/sycl.hpp",
    "compiler/latest/lib/libsycl.so",
    "lib/libze_loader.so",
)
_VERSION = '  --version) echo "Intel(R) oneAPI DPC++/C++ Compiler 2026.2.0"; exit ;;'
_SEARCH = """
  "-E -v"*)
    echo "#include <...> search starts here:" >&2
    echo " {root}/compiler/latest/include" >&2
    echo " /usr/include" >&2
    echo "End of search list." >&2
    exit ;;"""


def write(root: Path, *, lists_includes: bool = True) -> Path:
    """Create a fake oneAPI whose icx and icpx log their command lines to `root`/calls."""
    for part in PARTS:
        (root / part).parent.mkdir(parents=True, exist_ok=True)
        (root / part).touch()
    search = _SEARCH.format(root=root) if lists_includes else '\n  "-E -v"*) exit ;;'
    for name in ("icx", "icpx"):
        write_compiler(root / "compiler/latest/bin" / name, root, _VERSION + search)
    return root
