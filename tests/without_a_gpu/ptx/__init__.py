"""
Runs the PTX that NVRTC makes of the CUDA source, in NumPy: no GPU, no driver.

``compiler`` has NVRTC compile a source string as CuPy would have it compiled; ``parser`` reads
the text; ``instructions`` is the table of known instructions; ``arithmetic`` has what NumPy lacks
(the processor computes fused products); ``memory`` holds what a kernel may touch,
and finds races; ``machine`` runs a launch, the threads being the lanes of arrays; ``executor``
takes the place of g++ in ``cuda_on_cpu``.

What is modeled: every instruction as the PTX manual has it, bit by bit, subnormals flushed where
``.ftz`` says so; divergence and block barriers; static and dynamic shared memory, poisoned; bounds
and alignment of every access, against the arrays that were passed; races: without one, no result
depends on the order of threads, which is therefore always the same.

What is not: the payload of a NaN; the last places of ``.approx``, which a GPU rounds in its own
way; time, caches, registers, and what ptxas makes of the PTX; instructions that the table lacks,
which are errors: votes, textures, calls, local memory, and other atomics and barriers.
"""
