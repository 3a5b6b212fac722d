"""An import-linter contract that leaves out modules which do not exist yet.

The layers of the package are planned ahead of the code; `forbidden` refuses a name that is not there. A
misspelt name would go unseen here, so `tests/unit/test_layers.py` holds the names against the layers.
"""

from __future__ import annotations

from grimp import ImportGraph
from importlinter import ContractCheck
from importlinter.contracts.forbidden import ForbiddenContract


class ForbiddenWherePresent(ForbiddenContract):
    """`forbidden`, over those of its source and own forbidden modules that the package has."""

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        self.source_modules = {m for m in self.source_modules if m.expression in graph.modules}
        self.forbidden_modules = {
            m
            for m in self.forbidden_modules
            if not m.expression.startswith("broaden.") or m.expression in graph.modules
        }
        return super().check(graph, verbose)
