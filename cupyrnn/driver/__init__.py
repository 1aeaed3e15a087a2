"""Runs any cell: layers, directions, sequences of different lengths, dropout, gradients."""
