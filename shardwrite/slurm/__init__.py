"""Job scripts, submissions, requeues and clusters for SLURM.

Nothing here prints, and nothing needs `sacct`.
"""
