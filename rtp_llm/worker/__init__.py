# SPDX-License-Identifier: Apache-2.0
"""Running the model of one step: KV cache memory, forward pass, sampling."""
