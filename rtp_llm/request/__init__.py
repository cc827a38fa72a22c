# SPDX-License-Identifier: Apache-2.0
"""What a caller requests for a prompt."""
