"""What gpu.py is made of: the problem, the contestants, the clock, the checks, the report."""
