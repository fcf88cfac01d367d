"""Jobs of several processes: the command of their launcher, the program around each process, and its record."""
