"""The public names of the package."""

from __future__ import annotations

import broaden.perturb as perturb


def test_every_exported_name_exists_and_has_a_docstring():
    assert sorted(perturb.__all__) == sorted(set(perturb.__all__))
    for name in perturb.__all__:
        value = getattr(perturb, name)
        if callable(value) and name != "Weights":
            assert value.__doc__, name
