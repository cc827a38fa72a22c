# SPDX-License-Identifier: Apache-2.0
"""A worker that spans several processes, which see the same plan in shared memory."""
