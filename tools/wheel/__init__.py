# SPDX-License-Identifier: Apache-2.0
"""Makes the wheel of a device, and reads wheels for tests."""
