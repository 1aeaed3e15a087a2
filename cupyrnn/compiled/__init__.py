"""
Steps of cells compiled by Numba, if it is installed. A file is named as its cell and has the
same functions, and `takes`, which says whether it compiles a cell's steps for a dtype.
"""
