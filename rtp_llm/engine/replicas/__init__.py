# SPDX-License-Identifier: Apache-2.0
"""Data parallelism: several engines that share experts, seen as one engine or client."""
