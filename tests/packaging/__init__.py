"""What is published: the wheel, and what is in an environment that has nothing else."""
