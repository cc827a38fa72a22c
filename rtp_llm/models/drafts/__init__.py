# SPDX-License-Identifier: Apache-2.0
"""Models that draft for another one: EAGLE-3, MTP, draft models."""
