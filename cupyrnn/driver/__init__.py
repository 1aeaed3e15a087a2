"""From one cell to a net: runs of sequences, layers, directions, for all cells and arrays."""
