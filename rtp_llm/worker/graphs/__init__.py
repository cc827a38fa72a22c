"""Steps captured as graphs of the device, and their replay."""
