"""What runs any cell: sequences of different lengths, layers, directions, dropout, gradients."""
