"""Forward derivatives of what is made of the ops: `jvp`, and the arrays it hands to a function."""
