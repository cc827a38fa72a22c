# SPDX-License-Identifier: Apache-2.0
"""llama.cpp's /infill: text before and after in, what belongs between out."""
