"""What arguments must be, and the errors that say so."""
