"""Requests, replies, events and errors between the kernel and its helper processes, over a pipe.

The kernel uses an :class:`~jupyter_amltrain.rpc.client.RpcClient`; the helper process runs an
:class:`~jupyter_amltrain.rpc.server.RpcServer` with a table of operations. One of them is the MLflow worker
(:mod:`jupyter_amltrain.tracking.worker`).
"""
