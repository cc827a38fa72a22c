# SPDX-License-Identifier: Apache-2.0
"""Steps captured as graphs of the device, and their replay."""
