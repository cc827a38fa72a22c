# SPDX-License-Identifier: Apache-2.0
"""The KV cache: how much memory it gets, and the tensors themselves."""
