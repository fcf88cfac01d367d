"""Requests, replies, events and errors between the kernel and its helper processes, over a pipe.

The kernel uses an :class:`~jupyter_amltrain.rpc.client.RpcClient`; the helper process runs an
:class:`~jupyter_amltrain.rpc.server.RpcServer` with a table of operations. There are two helpers: the MLflow worker
(:mod:`jupyter_amltrain.tracking.worker`) and the Azure service process
(:mod:`jupyter_amltrain.backends.azureml.service.operations`).
"""
