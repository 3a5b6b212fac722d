"""Keyed Gaussian perturbations: members, exact updates, fingerprints, replay.

Pure functions of weights and a log. Needs NumPy, Numba and PyTorch; knows nothing of models, engines,
tasks or files.
"""

from broaden.perturb.fingerprint import center_hash, checksum, drift
from broaden.perturb.inplace import InPlaceControl
from broaden.perturb.members import perturbed, write_center, write_member
from broaden.perturb.noise import NOISE_VERSION, normal, normal_table
from broaden.perturb.seedlog import apply_line, log_line, replay
from broaden.perturb.spec import FULL, LowRank, NoiseSpec, Parameterisation, Selection, Weights, check_rank
from broaden.perturb.update import UpdateStats, apply_update, fold_signs

__all__ = [
    "FULL",
    "NOISE_VERSION",
    "InPlaceControl",
    "LowRank",
    "NoiseSpec",
    "Parameterisation",
    "Selection",
    "UpdateStats",
    "Weights",
    "apply_line",
    "apply_update",
    "center_hash",
    "check_rank",
    "checksum",
    "drift",
    "fold_signs",
    "log_line",
    "normal",
    "normal_table",
    "perturbed",
    "replay",
    "write_center",
    "write_member",
]
