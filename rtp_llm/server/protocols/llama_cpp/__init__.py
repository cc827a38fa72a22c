# SPDX-License-Identifier: Apache-2.0
"""llama.cpp's /infill: generates the text between a given prefix and suffix."""
