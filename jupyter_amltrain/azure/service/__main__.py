"""Entry point of the service process."""

from jupyter_amltrain.azure.service.operations import main

if __name__ == "__main__":
    main()
