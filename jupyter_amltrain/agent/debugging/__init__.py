"""A debugger for the processes of a run, over files of its folder."""
