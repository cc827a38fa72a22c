# SPDX-License-Identifier: Apache-2.0
"""`rtp-llm route`: one address for several servers; sends each request where it costs least."""
