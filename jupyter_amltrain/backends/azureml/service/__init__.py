"""The one process that imports Azure's packages, so that the kernel need not.

``python -m jupyter_amltrain.backends.azureml.service STATE_ROOT``; see :mod:`.operations`.
"""
