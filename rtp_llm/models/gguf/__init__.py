# SPDX-License-Identifier: Apache-2.0
"""What the metadata of a GGUF file says as the config.json of the same model would."""
