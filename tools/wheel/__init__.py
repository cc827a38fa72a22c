"""Makes the wheel of a device, and reads wheels for tests."""
