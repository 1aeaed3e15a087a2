"""What gpu.py is made of: problem, contestants, clock, checks, report, and what follows from it."""
