# SPDX-License-Identifier: Apache-2.0
"""Progress on a terminal."""
