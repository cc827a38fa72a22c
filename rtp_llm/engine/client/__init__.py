"""The side of the HTTP process: start an engine process, send requests, follow it."""
