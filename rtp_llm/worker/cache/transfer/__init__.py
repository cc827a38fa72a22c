# SPDX-License-Identifier: Apache-2.0
"""Copies of cache blocks between a device, host memory and whoever stores or sends them."""
