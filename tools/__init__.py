"""Developer tools: what the Makefile and the build call. Not part of the wheel."""
