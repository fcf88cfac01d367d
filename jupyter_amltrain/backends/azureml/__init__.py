"""Azure Machine Learning: the kernel's side here, all that imports Azure's packages in :mod:`.process`."""
