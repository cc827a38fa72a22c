# SPDX-License-Identifier: Apache-2.0
"""How a layer's weights lie in a checkpoint, and which shard of them a rank loads where.

`stored_format` says what a format declares, `stored_config` which format a module has; each format
has a file, those of other makers in `stored/`. `shard` has the slices of a rank, `targets` what the
loader fills, `shard_targets` and `interleaved` the targets of slices, `stacked` the weights of many
experts.
"""
