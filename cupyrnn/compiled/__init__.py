"""
The steps of cells, compiled by Numba if it is installed.

The file of a cell has the cell's name and the same functions. Its `takes` says whether a cell's
steps are compiled for a dtype.
"""
