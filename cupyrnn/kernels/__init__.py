"""
The CUDA twins of the recurrences, and the code that runs them.

* The file of a cell has the name of its NumPy twin. It contains the cell's equations as a struct of
  plain scalar C++, described in `cell`, and Python functions with the names of their NumPy twins,
  which launch the kernels.
* `step` has the kernels of a single step. `rows`, `grid` and `cluster` compute all steps in one
  launch; their loops are in `all_steps`.
* `common` has the scalar functions that all cells share, `launch` the sums that all cells use.
* `weight_gradients` has what follows the steps backwards for one cell only.
* `products` and `dropout` have twins in `arithmetic`.
* `compile` is the only user of cupy.RawModule, `blas` the only user of cuBLAS.

Nothing here is imported before the first CuPy array.

The comment of a pointer argument has its shape, such as `[T, B, H]`, and "read", "written" or
"updated". All arrays are C-contiguous. T is the storage type, and A = Acc<T>::type the type of the
computation, which is float for the two half formats. For complex arrays both are Dual, a value and
its tangent, and the equations are the same.
"""
