# SPDX-License-Identifier: Apache-2.0
"""Bodies, answers and errors: what the other folders of the server exchange."""
