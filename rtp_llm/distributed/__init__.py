# SPDX-License-Identifier: Apache-2.0
"""Several processes that compute one model: process groups, expert parallelism, balancing."""
