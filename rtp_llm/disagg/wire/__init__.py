# SPDX-License-Identifier: Apache-2.0
"""Messages between prefill and decode workers, their connections, and the proof of a shared key."""
