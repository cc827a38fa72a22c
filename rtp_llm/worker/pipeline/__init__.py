"""Workers of the stages of a pipeline."""
