"""Entry of the process."""

from jupyter_amltrain.backends.azureml.process.serve import main

if __name__ == "__main__":
    main()
