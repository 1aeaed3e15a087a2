"""
Recurrences that one launch takes through all time steps: a block has a few sequences.

Sequences do not depend on each other, so no block waits for another one: there is nothing
cooperative about the launch, and every architecture can do it. The recurrent matrix stays in the
registers of a block for the whole time, or in its registers and its shared memory, and a step
costs one barrier of the block, two where the reset comes before the product. `common` has what all
cells share. Each cell has a file of its name, made of the gate functions that the kernels of one
step have. ``kernels/persistent.py`` says when these are taken.

The sums of a sequence are made in one order whatever the number of sequences of a block, and
wherever a part of the matrix is: its bits do not depend on the sequences beside it.
"""
