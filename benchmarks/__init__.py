"""What the toolkit reaches, measured beside the limit, in one run."""
