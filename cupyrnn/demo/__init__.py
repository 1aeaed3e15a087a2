"""The main job: train a character language model made of the package's ops.

Symbols as in the ops: T time steps, B batch, I input size, H hidden size; here I is the size of
the character embedding and V the number of symbols.
"""
