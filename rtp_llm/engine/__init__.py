"""The engine: schedule, execute, commit; its process and the client that talks to it."""
