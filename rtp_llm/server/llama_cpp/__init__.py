"""llama.cpp's /infill: text before and after in, what belongs between out."""
