"""Steps captured as CUDA or HIP graphs, and their replay."""
