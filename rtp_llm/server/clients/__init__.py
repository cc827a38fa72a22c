"""Client libraries against a real server; each turn runs in the environment of their lock."""
