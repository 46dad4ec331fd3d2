"""The clients that `bench/remote.py` compares: how each is called, and nothing else."""
