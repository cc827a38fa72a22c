# SPDX-License-Identifier: Apache-2.0
"""The base class of all layers: torch modules without the overhead of module calls.

A step of a small model calls hundreds of modules and looks up hundreds of weights. The calls
(hooks) and lookups (a Python function per weight and child) of modules took a quarter of that step.
"""

from __future__ import annotations

from typing import Any

from torch import nn


class Layer(nn.Module):
    """A module whose call is its forward: hooks do not run."""

    def __call__(self, *inputs: Any) -> Any:
        return self.forward(*inputs)


def shorten_lookups(model: nn.Module) -> None:
    """Make weights and children of all modules plain attributes; called once, after loading.

    Assigning another weight or child still works: the module then drops the shortcut.
    """
    for module in model.modules():
        vars(module).update(module._parameters)
        vars(module).update(module._modules)
