# SPDX-License-Identifier: Apache-2.0
"""What building, checking and releasing need; nothing of it goes into the wheel."""
