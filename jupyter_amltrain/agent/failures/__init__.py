"""Values at failure: the variables of the lines that raised, which the job's Python writes into a file of the run."""
