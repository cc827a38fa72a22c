# SPDX-License-Identifier: Apache-2.0
"""The chat page at `/`: its sources in source/, built into bundle/ by build.mjs."""
