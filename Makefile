# `make demo` and `make test` work on a fresh machine with Python 3.11: they do their own set-up.
.PHONY: demo test slow check setup docs wheel
demo: ; @scripts/setup core && .venv/bin/broaden demo
test: ; @scripts/test
slow: ; @scripts/test -m slow
check: ; @scripts/check
setup: ; @scripts/setup dev
docs: ; @scripts/docs
wheel: ; @scripts/setup dev && .venv/bin/python -m pip wheel --quiet --no-deps --wheel-dir dist .
