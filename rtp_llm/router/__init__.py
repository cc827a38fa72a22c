# SPDX-License-Identifier: Apache-2.0
"""`rtp-llm route`: one address before several servers; each request goes where it costs least."""
