"""Numbers: gates, dual numbers, products with a transposed matrix, memory to work in."""
