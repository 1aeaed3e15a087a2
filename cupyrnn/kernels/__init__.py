"""
The CUDA twins of the recurrences, and what runs them.

`common` holds the scalar functions that all cells share, as CUDA source.
Each cell has a file of the name its NumPy twin has in the package, with its equations as a struct
of plain scalar C++ (`cell` says what is in one), and the Python functions that launch the kernels,
named like their NumPy twins. The kernels of any cell are in `step`, of a single step, and in
`rows`, `grid` and `cluster`, of all steps, whose loops are in `all_steps`.
`products` and `dropout` have twins in `arithmetic`.
`launch` has the sums that every cell takes. `compile` is the only user of cupy.RawModule, `blas`
the only user of cuBLAS. Nothing here is imported before a CuPy array arrives.

Every pointer argument of a kernel says what it points to: `[T, B, H]` is the shape, "read",
"written" or "updated" what the kernel does with it. All arrays are C-contiguous. T is the storage
type and A = Acc<T>::type the type of the computation, which is float for the two half formats. For
complex arrays both are Dual, a value and its slope, and the equations are the same.
"""
