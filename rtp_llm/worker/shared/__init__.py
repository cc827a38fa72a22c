# SPDX-License-Identifier: Apache-2.0
"""A worker in other processes, which see the same plan in shared memory."""
