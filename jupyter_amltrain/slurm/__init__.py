"""Slurm clusters: a guest behind the hook for backends. Nothing outside of this folder knows Slurm."""
