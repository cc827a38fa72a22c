"""Transports by which a decode worker itself reads a prefill worker's memory."""
