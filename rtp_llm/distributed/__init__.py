"""Several processes that compute one model: process groups, expert parallelism, balancing."""
