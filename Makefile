# Two commands do everything on a fresh machine: `make demo` and `make test`. `make check` is what CI checks first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
DEMO_INSTALLED := $(VENV)/.demo-installed
WEB := api/web
NODE_MODULES := $(WEB)/node_modules/.package-lock.json
DASHBOARD := api/static/.built
HAS_NODE := node -e 'process.exit(+(parseInt(process.versions.node) < 20))' 2>/dev/null
IN_WEB := npm --prefix $(WEB) --no-audit --no-fund
# A registry that fails once is asked again, and longer than by default.
export PIP_RETRIES ?= 10
export npm_config_fetch_retries ?= 5
# Images of containers set it. The tests start hundreds of interpreters, and pytest rewrites each module for each worker:
# without bytecode each of them compiles everything again.
unexport PYTHONDONTWRITEBYTECODE
# requirements.lock is of CPython 3.11 on Linux x86-64 with torch's CPU build; elsewhere, and with LOCKED=, the versions of
# constraints.txt are installed without a look at their hashes.
LOCKED ?= $(shell $(PYTHON) -c 'import platform as p, sys; \
	print("yes" * ((sys.version_info[:2], p.system(), p.machine()) == ((3, 11), "Linux", "x86_64")))')
COMPILE := $(BIN)/uv pip compile --quiet --generate-hashes --python $(BIN)/python $(addprefix --find-links ,$(PIP_FIND_LINKS)) \
	--no-emit-find-links --no-emit-index-url --custom-compile-command "make lock" pyproject.toml

.PHONY: gpu-wheels demo test test-fast test-long check check-quick check-web api-types format install dashboard docs docs-samples lock lock-images sbom clean

# Installs the trainer and reports alone where nothing is installed yet. Probed first, so that speeds are predicted, and shown
# beside what is measured.
DEMO_CLUSTER := build/demo-cluster.yaml
demo: $(if $(wildcard $(INSTALLED)),$(INSTALLED),$(DEMO_INSTALLED))
	@mkdir -p build
	$(BIN)/meshtune cluster probe --devices-per-node 4 --seconds 10 --name local-cpu --force -o $(DEMO_CLUSTER)
	$(BIN)/meshtune estimate examples/demo.yaml --cluster $(DEMO_CLUSTER)
	$(BIN)/meshtune run examples/demo.yaml --cluster $(DEMO_CLUSTER)
	$(BIN)/meshtune report last -o build/demo-report.html
	@echo "The dashboard: make dashboard, then $(BIN)/meshtune serve"

# Three workers on two cores: the clusters' and the page's tests wait for most of their time.
test: $(INSTALLED) dashboard
	@if [ -e $(NODE_MODULES) ]; then $(IN_WEB) test; fi
	sh tests/install_system_packages.sh
	$(BIN)/pytest --numprocesses 3 --dist loadgroup

# For the inner loop: without real training processes, servers, databases and clusters, and modules of several seconds.
test-fast: $(INSTALLED)
	$(BIN)/pytest --numprocesses 2 -m "not slow and not postgres and not slurm and not ray and not browser and not long"

# The long forms of what `make test` takes a part of, and the table of the trainer's correctness matrix: TABLE=...
# tests/trainer is named because an option of its conftest is.
TABLE ?= matrix.md
CONTRACT := tests/runners/test_contract.py tests/runners/test_life_cycle.py
FLUX_TESTS := examples/plugins/meshtune-flux/tests
test-long: $(INSTALLED)
	sh tests/install_system_packages.sh accounting
	$(BIN)/pytest -q -m "long or matrix" --matrix-table $(TABLE) tests/trainer tests
	@for lab in FluxLaboratory PretendedFluxLaboratory; do \
		PYTHONPATH=$(FLUX_TESTS) MESHTUNE_LABORATORY=flux_lab:$$lab $(BIN)/pytest -q $(CONTRACT) || exit 1; done
	cat $(TABLE)

# Before a commit too: .pre-commit-config.yaml.
check-quick: $(INSTALLED)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/python docs/site/rooms.py --check

check: check-quick
	$(BIN)/mypy
	$(BIN)/lint-imports
	@if $(HAS_NODE); then $(MAKE) --no-print-directory check-web; \
	else echo "no Node 20 or newer here: the dashboard's sources are not checked"; fi

check-web: $(NODE_MODULES) $(INSTALLED)
	mkdir -p build
	$(BIN)/python api/web/schemas.py build/openapi.json build/axes.json
	cmp build/axes.json $(WEB)/src/api/axes.json && $(IN_WEB) run check-api-types || { echo "the page's types differ from the OpenAPI document: make api-types"; exit 1; }
	$(IN_WEB) run check

# The documentation as a site in build/site; a broken link or anchor is an error.
docs: $(INSTALLED)
	$(BIN)/python docs/site/rooms.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict --config-file docs/site/mkdocs.yml

# What the pages show of commands and campaigns (docs/site/samples.py), written by the tests that compare it. Where Slurm or
# DeepSpeed is not installed the blocks of their runs stay.
SAMPLED := tests/test_docs.py tests/examples/test_bring_your_own.py tests/examples/test_tutorial_slurm.py tests/tune
docs-samples: $(INSTALLED)
	MESHTUNE_SAMPLES=write $(BIN)/pytest -q -k "commands_print or shows" $(SAMPLED)

# The page's types of the service's documents, from its OpenAPI document.
api-types: $(NODE_MODULES) $(INSTALLED)
	mkdir -p build
	$(BIN)/python api/web/schemas.py build/openapi.json $(WEB)/src/api/axes.json
	$(IN_WEB) run api-types

format: $(INSTALLED)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# A dashboard that cannot be built keeps nobody from the rest: the service runs without it, and says so at /.
install: $(INSTALLED)
	@$(MAKE) --no-print-directory dashboard || echo "the dashboard could not be built; the service runs without it"

dashboard:
	@if $(HAS_NODE); then $(MAKE) --no-print-directory $(DASHBOARD); \
	else echo "no Node 20 or newer here: the dashboard is not built, and the service runs without it"; fi

$(DASHBOARD): $(NODE_MODULES) $(shell find $(WEB) -name node_modules -prune -o -type f -print)
	$(IN_WEB) run build
	touch $@

$(NODE_MODULES): $(WEB)/package.json $(WEB)/package-lock.json
	$(IN_WEB) ci
	touch $@

# Every package that is installed by its hashes, and those of them that a service and the demo need. From the index that uv is set up for; torch's CPU
# build from PIP_FIND_LINKS, or UV_INDEX.
lock: $(INSTALLED)
	$(COMPILE) --extra dev --constraint constraints.txt --output-file requirements.lock
	$(COMPILE) --extra all --constraint requirements.lock --no-annotate --output-file examples/service/requirements.lock
	$(COMPILE) --extra torch --extra report --constraint requirements.lock --no-annotate --output-file examples/demo.lock

# The digests of the images of examples/service, beside their tags; asks the registry.
IMAGES := examples/service/Dockerfile examples/service/compose.yaml
lock-images:
	@for image in $$(sed -nE 's/^(FROM|    image:) ([a-z]+:[^@ ]+).*/\2/p' $(IMAGES) | sort -u); do \
		digest=$$(docker buildx imagetools inspect $$image --format '{{.Manifest.Digest}}') || exit 1; \
		sed -i -E "s#^(FROM|    image:) $$image(@[^ ]+)?#\1 $$image@$$digest#" $(IMAGES); \
	done

# The libraries that a bare machine with a GPU lacks, for benchmarks/gpu_kit/first.py: docs/gpu.md. GPU_PYTHON: of that machine.
GPU_PYTHON ?= 3.12
gpu-wheels: $(INSTALLED)
	$(BIN)/python benchmarks/gpu_kit/wheels.py .whl $(GPU_PYTHON)

# What is installed, as CycloneDX: the licence of each package, and its text where cyclonedx-py finds it. In an environment
# of its own: what it needs makes each import of Ray 1.3 s longer.
sbom: $(INSTALLED)
	mkdir -p build
	$(BIN)/uv tool run --from cyclonedx-bom==7.5.0 cyclonedx-py environment --gather-license-texts --pyproject pyproject.toml --output-reproducible \
		--output-file build/sbom.json $(BIN)/python

# Bytecode is written where a module is first imported: for all of them it takes longer than everything else. Unlocked, torch
# first and alone: its exact version keeps a resolver from choosing a build with CUDA.
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --no-compile
$(INSTALLED): LOCK := requirements.lock
$(INSTALLED): EXTRAS := dev
$(DEMO_INSTALLED): LOCK := examples/demo.lock
$(DEMO_INSTALLED): EXTRAS := torch,report
$(INSTALLED) $(DEMO_INSTALLED): pyproject.toml constraints.txt requirements.lock examples/demo.lock
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "meshtune needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)
ifeq ($(LOCKED),yes)
	$(PIP) --require-hashes --requirement $(LOCK)
	$(PIP) --no-deps --no-build-isolation --editable .
else
	$(PIP) --constraint constraints.txt torch==2.13.0
	$(PIP) --constraint constraints.txt --editable '.[$(EXTRAS)]'
endif
	touch $@

clean:
	rm -rf $(VENV) $(WEB)/node_modules api/static .meshtune build src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
