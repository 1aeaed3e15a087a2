"""
Recurrences in one launch, by tensor cores: a block has eight sequences in a half format.

As in ``rows``, no block waits for another one and the recurrent matrix stays in registers. Here
the products are those of ``mma.sync`` with 16 rows, 16 columns and eight sequences, which devices
from sm_80 on have. Sums and states are in float32. `common` has what the cells share, and each
cell has a file of its name.

A warp has sixteen units: forwards their columns of each gate, backwards their rows, over the deltas
of all gates. So a lane is left with whole sums of two units and two sequences, no warp needs what
another one has added up, and a step costs one barrier.
"""
