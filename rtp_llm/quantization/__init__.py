# SPDX-License-Identifier: Apache-2.0
"""Weight quantisation while loading."""
