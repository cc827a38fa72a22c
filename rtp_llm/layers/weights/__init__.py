# SPDX-License-Identifier: Apache-2.0
"""How a layer's weights lie in a checkpoint, and which shard of them a rank loads where."""
