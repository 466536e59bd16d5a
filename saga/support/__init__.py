"""Clock and printing: what every part of the toolkit needs."""
