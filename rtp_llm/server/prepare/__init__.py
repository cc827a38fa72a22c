# SPDX-License-Identifier: Apache-2.0
"""From a body to tokens: parse, render, tokenise; long bodies in the preparation process."""
