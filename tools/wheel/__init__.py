# SPDX-License-Identifier: Apache-2.0
"""Builds the wheel of a device, and reads wheels for tests."""
