"""Azure Machine Learning: the kernel's side here; what imports Azure's packages is in :mod:`.job`."""
