"""The kernel and its helper processes: requests, answers, events and errors over a pipe.

The kernel has a :class:`~jupyter_amltrain.rpc.client.RpcClient`, the process a
:class:`~jupyter_amltrain.rpc.server.RpcServer` with a table of operations. There are two such processes: MLflow's
(:mod:`jupyter_amltrain.tracking.worker`) and Azure's (:mod:`jupyter_amltrain.backends.azureml.service.operations`).
"""
