"""The agent: what supervises jobs on a machine.

This package travels to the target as one zipapp and is imported by the kernel
as well, so all of it is Python 3.8 grammar and standard library; the single
guest is ``pynvml``, used only in processes that fork no others: short-lived
probes, and the samplers.
"""
