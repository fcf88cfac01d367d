"""What a run uses: host, GPUs, and the files that say so."""
