"""Configuration: frozen pydantic leaves, TOML files, overrides and presets."""

from broaden.config.load import build_config, config_hash, diff, load_config, to_dict, to_toml
from broaden.config.schema import (
    BudgetConfig,
    CheckpointConfig,
    EngineConfig,
    EsStage,
    GrpoStage,
    HeldOutConfig,
    ModelConfig,
    PopulationConfig,
    ProbeConfig,
    RunConfig,
    SftStage,
    TaskConfig,
)

__all__ = [
    "BudgetConfig",
    "CheckpointConfig",
    "EngineConfig",
    "EsStage",
    "GrpoStage",
    "HeldOutConfig",
    "ModelConfig",
    "PopulationConfig",
    "ProbeConfig",
    "RunConfig",
    "SftStage",
    "TaskConfig",
    "build_config",
    "config_hash",
    "diff",
    "load_config",
    "to_dict",
    "to_toml",
]
