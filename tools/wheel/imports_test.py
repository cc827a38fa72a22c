# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from tools.wheel import imports

SOURCES = {
    "thing/a.py": "import os, numpy.linalg\nfrom thing import b\nfrom . import c\n",
    "thing/b.py": (
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    import mypy\n"
        "else:\n    import zmq\n"
        "def late():\n    from safetensors.torch import load_file\n    import numpy\n"
    ),
}


def test_imports_of_others_are_found_wherever_they_stand() -> None:
    assert imports.third_party(SOURCES, "thing") == {
        "numpy": {"thing/a.py", "thing/b.py"},
        "safetensors": {"thing/b.py"},
        "zmq": {"thing/b.py"},
    }


def test_what_no_requirement_brings_is_undeclared() -> None:
    found = imports.third_party(SOURCES, "thing")
    assert imports.undeclared(found, ["numpy>=2.0,<3", "pyzmq>=26,<28"]) == {
        "safetensors": {"thing/b.py"}
    }
    assert imports.undeclared(found, ["NumPy", "pyzmq", "safetensors"]) == {}


def test_what_a_requirement_always_needs_is_there_and_its_extras_are_not() -> None:
    needed = {name: {"a.py"} for name in ("h11", "httptools", "no_such_module")}
    assert imports.undeclared(needed, ["uvicorn"]) == {
        "httptools": {"a.py"},  # of uvicorn[standard]
        "no_such_module": {"a.py"},
    }
