"""
The cells: each file is one cell's equations, forward and backward, in NumPy.

`contract` says what the driver asks of a cell. A cell is a NamedTuple of the weights and attributes
of one call, and three functions: ``forward_steps``, ``backward_steps`` and, if it has vectors of
its own, ``add_sums``. The files of the same names in ``kernels`` and ``compiled`` hold the same
functions in CUDA and for Numba, with the same names and order.
"""
