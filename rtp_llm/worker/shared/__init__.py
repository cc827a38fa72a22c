"""A worker in other processes, which see the same plan in shared memory."""
