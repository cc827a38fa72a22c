# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

from tools.lint import sizes

_CPP = """\
#include <x>
namespace rtp_llm {
namespace {

int add(int a,
        int b) {
  if (a) {
    return b;
  }
  return a + b;
}

}  // namespace

class Pool {
 public:
  Pool() : size_(0) {}
  int size() const {
    return size_;
  }
};
}  // namespace rtp_llm
"""


def _tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def _function(name: str, lines: int) -> str:
    return f"def {name}():\n" + "    x = 1\n" * (lines - 1)


def test_python_lengths() -> None:
    text = "@cache\ndef f():\n    def g():\n        return 1\n    return g\n"
    lengths = {length.name: length.lines for length in sizes.of_python("a.py", text)}
    assert lengths == {"": 5, "f": 4, "g": 2}


def test_cpp_lengths() -> None:
    lengths = {length.name: length.lines for length in sizes.of_cpp("a.cc", _CPP)}
    assert lengths == {"": 22, "add": 7, "size": 3}


def test_a_long_function_needs_a_reason(tmp_path: Path) -> None:
    root = _tree(tmp_path, {"a.py": _function("f", 41)})
    (complaint,) = sizes.check(root)
    assert "a.py:1: f has 41 lines, the budget is 40" in complaint
    _tree(root, {str(sizes.WAIVERS): "# why\na.py::f | a table\n"})
    assert sizes.check(root) == []


def test_a_waiver_needs_a_reason_and_a_use(tmp_path: Path) -> None:
    files = {"a.py": _function("f", 41), str(sizes.WAIVERS): "a.py::f |\nb.py | gone\n"}
    complaints = sizes.check(_tree(tmp_path, files))
    assert len(complaints) == 2
    assert "say why not" in complaints[0]
    assert "waiver for b.py" in complaints[1]


def test_nothing_excuses_the_upper_limit(tmp_path: Path) -> None:
    files = {"a.py": _function("f", 81), "b.py": "\n" * 601}
    files[str(sizes.WAIVERS)] = "a.py::f | reason\nb.py | reason\n"
    complaints = sizes.check(_tree(tmp_path, files))
    assert sum("split it" in complaint for complaint in complaints) == 2


def test_median_function_of_the_package(tmp_path: Path) -> None:
    files = {"rtp_llm/f.py": _function("f", 12), "rtp_llm/f_test.py": _function("test_f", 2) * 9}
    (complaint,) = sizes.check(_tree(tmp_path, files))
    assert "median function of rtp_llm/ has 12" in complaint
