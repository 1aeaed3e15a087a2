"""
Steps of cells compiled by Numba, where that is installed: the file of a cell's name, with the same
functions, and `takes`, which says whether it has a cell's steps for a dtype.
"""
