"""Forward derivatives of functions that call the ops: `jvp`, and the arrays that it passes them."""
