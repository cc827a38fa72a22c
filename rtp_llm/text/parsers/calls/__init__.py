"""The forms that calls are written in, each read by a generator."""
