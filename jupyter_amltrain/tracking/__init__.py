"""The project's MLflow store: its only importer, and MLflow's own web page.

Jobs log to the agent's sink, which leaves a journal and artifacts in the run folder.
Only this package turns them into rows, under one lock, so that no two processes ever migrate one
SQLite file at the same time; the notebook's own MLflow writes beside it, in short transactions.
All of it runs in the worker process; nothing is imported before its first use.
"""
