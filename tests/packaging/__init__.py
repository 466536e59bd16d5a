"""Release: the wheel, and an environment that has nothing else."""
