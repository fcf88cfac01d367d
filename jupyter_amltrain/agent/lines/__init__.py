"""Where the time of a job's Python goes: samples of its stacks, by line of the user's code."""
