"""What building, checking and releasing need; nothing of it goes into the wheel."""
