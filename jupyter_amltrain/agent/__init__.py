"""The agent: queues, supervises and samples jobs on a machine.

The package is sent to the target as one zipapp and is also imported by the kernel,
so it is limited to Python 3.8 grammar and the standard library. The only exception
is ``pynvml``, which is used only in processes that do not fork: short-lived probes
and the samplers.
"""
