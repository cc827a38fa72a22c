# SPDX-License-Identifier: Apache-2.0
"""CONTRIBUTING.md, followed in a copy of the tree: the results of its recipes build and pass."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import rtp_llm
from rtp_llm.native import OPS_VARIABLE, RUNTIME_VARIABLE
from tools.newcomer import one_family, recipes

ROOT = Path("WORKSPACE").resolve().parent
PAGE = (ROOT / "CONTRIBUTING.md").read_text()
# The recipe's model through the engine: scheduler, cache in blocks, sampler.
SERVED = """
import sys
from pathlib import Path
from rtp_llm.testing.engine.tiny_engine import TinyEngine
from rtp_llm.testing.models.transformers_models import clear_prompt, save_model
folder = Path(sys.argv[1])
prompt, expected = clear_prompt(save_model(folder, sys.argv[2]), 40, 24)
engine = TinyEngine(folder)
asked = engine.add(prompt, max_tokens=24, ignore_eos=True)
engine.run()
assert engine.outcomes[asked, 0].tokens == expected, (engine.outcomes[asked, 0].tokens, expected)
assert len(set(expected)) > 4
"""


def python(tree: Path, *arguments: str, **variables: str) -> str:
    """Output of Python in `tree`, with this build's native libraries unless variables name some."""
    packages = [path for path in sys.path if path.endswith("site-packages")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tree), *packages])}
    environment |= variables
    for variable, pattern in (
        (OPS_VARIABLE, "lib/librtp_llm_*.so"),
        (RUNTIME_VARIABLE, "_run*.so"),
    ):
        for library in Path(rtp_llm.__file__).parent.glob(pattern):  # next to the runfiles links
            environment.setdefault(variable, str(library))
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


def run_pytest(tree: Path, commands: list[str], **variables: str) -> None:
    """Run the tests of `./dev test //FOLDER:TARGET --test_filter=NAME` commands in one process."""
    folders, names = set(), []
    for command in commands:
        dev, test, target, name = command.split()
        assert (dev, test) == ("./dev", "test"), command
        folders.add(target.removeprefix("//").partition(":")[0])
        names.append(name.removeprefix("--test_filter="))
    chosen = ["-k", " or ".join(names), *sorted(folders)]
    options = ["-q", "-rA", "--import-mode=importlib"]
    printed = python(tree, "-m", "pytest", *options, *chosen, **variables)
    passed = [line for line in printed.splitlines() if line.startswith("PASSED")]
    for name in names:
        assert any(name in line for line in passed), f"{name}: {printed}"
    assert "SKIPPED" not in printed, printed


def test_a_new_model(tmp_path: Path) -> None:
    tree = recipes.copy_of(ROOT, tmp_path / "tree")
    text = recipes.section(PAGE, "Add a model")
    (made, *_rows) = recipes.follow(text, tree)
    run_pytest(tree, recipes.commands(text))
    python(tree, "-c", SERVED, str(tmp_path / "folder"), made.stem)


def test_a_new_stored_format(tmp_path: Path) -> None:
    tree = recipes.copy_of(ROOT, tmp_path / "tree")
    text = recipes.section(PAGE, "Add a stored format")
    recipes.follow(text, tree)
    run_pytest(tree, recipes.commands(text))
    for line in text.splitlines():
        for name in recipes.paths(line):
            assert (ROOT / name).exists(), f"{name} in: {line}"


def test_a_new_operator(tmp_path: Path) -> None:
    tree = recipes.copy_of(ROOT, tmp_path / "tree")
    text = recipes.section(PAGE, "Add an operator")
    recipes.follow(text, tree)
    library = one_family.build(tree, tmp_path / "build", "norm")
    run_pytest(tree, recipes.commands(text), **{OPS_VARIABLE: str(library)})


def test_a_new_setting(tmp_path: Path) -> None:
    tree = recipes.copy_of(ROOT, tmp_path / "tree")
    text = recipes.section(PAGE, "Add a setting")
    recipes.follow(text, tree)
    generate, *tests = recipes.commands(text)
    command, page = generate.removeprefix(".venv/bin/python ").split(" > ")
    (tree / page).write_text(python(tree, *command.split()))
    run_pytest(tree, tests)


def test_a_new_endpoint(tmp_path: Path) -> None:
    tree = recipes.copy_of(ROOT, tmp_path / "tree")
    text = recipes.section(PAGE, "Add an endpoint")
    recipes.follow(text, tree)
    run_pytest(tree, recipes.commands(text))


@pytest.mark.parametrize("heading", ["Add a device", "Add an endpoint", "Add an array to a step"])
def test_files_that_the_page_names_are_there(heading: str) -> None:
    for line in recipes.section(PAGE, heading).splitlines():
        for name in recipes.paths(line):
            assert (ROOT / name).exists(), f"{name} in: {line}"
