# A thin face over `python -m tools.tasks`, which needs only the standard library.
PYTHON ?= $(shell command -v python3 || command -v python)

.PHONY: demo lab test test-ui test-azure test-trust test-distributed test-distributed-full test-slurm azure-sandbox ssh-sandbox slurm-sandbox azure-live check soak bench build clean
demo lab test test-ui test-azure test-trust test-distributed test-distributed-full test-slurm azure-sandbox ssh-sandbox slurm-sandbox azure-live check soak bench build clean:
	@$(PYTHON) -m tools.tasks $@ $(ARGS)
