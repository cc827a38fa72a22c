# SPDX-License-Identifier: Apache-2.0
"""What the endpoints of all protocols share: state, reading bodies, sending answers."""
