"""What the package is as a whole: its structure, its promises, its documentation."""
