# SPDX-License-Identifier: Apache-2.0
"""What all layers are: modules of torch without the cost that a module adds to each call.

A step of a small model calls hundreds of modules and looks up hundreds of weights. A module's own
call (hooks) and lookup (a Python function for each weight and child) took a quarter of that step.
"""

from __future__ import annotations

from typing import Any

from torch import nn


class Layer(nn.Module):
    """A module whose call is its forward: hooks do not run."""

    def __call__(self, *inputs: Any) -> Any:
        return self.forward(*inputs)


def shorten_lookups(model: nn.Module) -> None:
    """Let Python find weights and children as plain attributes; done once, after loading.

    Assigning another weight or child works as before: the module then drops the short way.
    """
    for module in model.modules():
        vars(module).update(module._parameters)
        vars(module).update(module._modules)
