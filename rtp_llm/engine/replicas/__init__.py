# SPDX-License-Identifier: Apache-2.0
"""Data parallel: several engines that share experts, behind one engine or client."""
