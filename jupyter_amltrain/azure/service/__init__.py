"""The Azure service process, the only process that imports Azure's packages.

``python -m jupyter_amltrain.azure.service STATE_ROOT``; see :mod:`.operations`.
"""
