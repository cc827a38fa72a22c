# SPDX-License-Identifier: Apache-2.0
"""Tools for building, checking and releasing; none of them is part of the wheel."""
