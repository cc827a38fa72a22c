"""What every test file finds: many files share one process."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="module")
def _state_of_the_process() -> Iterator[None]:
    """Undoes what a file did to the environment, to PyTorch's threads and to its default dtype."""
    environment = dict(os.environ)
    torch = sys.modules.get("torch")  # not imported for those who do without
    before = (torch.get_num_threads(), torch.get_default_dtype()) if torch else None
    yield
    for name in os.environ.keys() - environment.keys():
        del os.environ[name]
    os.environ.update(environment)
    if torch and before:
        torch.set_num_threads(before[0])
        torch.set_default_dtype(before[1])
