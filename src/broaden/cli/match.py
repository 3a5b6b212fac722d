"""`broaden match`: what ES and GRPO cost on all four budgets, and the N, G or updates at which they cost the same."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from broaden.cli import common

if TYPE_CHECKING:
    from broaden.ledger import Budget, EsPlan, GrpoPlan, Match, ModelSize

Ledger = Literal["paper", "full"]
Solve = Literal["n", "g", "updates"]
BUDGETS = ("updates", "tokens", "flops_paper", "flops_full", "seconds")


def match(
    es_n: Annotated[int | None, typer.Option("--es-n", min=2, help="N: members of ES (may be solved for).")] = None,
    grpo_g: Annotated[int | None, typer.Option("--grpo-g", min=2, help="G: responses a prompt (likewise).")] = None,
    prompts: Annotated[int, typer.Option(min=1, help="Prompts a batch, D = B, of both.")] = 64,
    updates: Annotated[int, typer.Option(min=1, help="Updates of both.")] = 234,
    response_tokens: Annotated[float, typer.Option(min=1, help="Mean response length.")] = 300,
    prompt_tokens: Annotated[float, typer.Option(min=0, help="Mean prompt length (full ledger).")] = 100,
    parameters: Annotated[float | None, typer.Option(min=1, help="Parameters, such as 1.5e9.")] = None,
    model: Annotated[str | None, typer.Option(help="Or a model: adds attention to the full ledger.")] = None,
    ledger: Annotated[Ledger, typer.Option(help="Which FLOPs are made equal.")] = "paper",
    solve: Annotated[Solve | None, typer.Option(help="What to solve for (default: the one not given).")] = None,
    kl: Annotated[float, typer.Option(min=0, help="GRPO's KL coefficient; at 0 no reference pass is made.")] = 0.001,
    grpo_steps: Annotated[int, typer.Option(min=1, help="Optimiser steps an update; above 1, a pass for pi_old.")] = 1,
    inner: Annotated[int, typer.Option(min=1, help="GRPO's passes over a batch.")] = 1,
    antithetic: Annotated[bool, typer.Option("--antithetic", help="ES evaluates each direction twice.")] = False,
    tokens_per_second: Annotated[float | None, typer.Option(min=1e-9, help="Decoding rate, for the seconds.")] = None,
    as_json: common.Json = False,
) -> int:  # fmt: skip
    """Compare ES and GRPO on all four budgets, and solve for the population or group that makes them equal.

    The paper's ledger counts 2PL an ES response and 8PL a GRPO one (6PL at KL 0): N = 4G (3G). The full one counts
    prompts, GRPO's own decoding and every pass that is made. Seconds take all of it at the rate of decoding.

    Example: broaden match --es-n 32 --grpo-g 8 --prompts 64 --updates 234 --parameters 1.5e9 --solve n
    """
    from broaden.errors import UsageError
    from broaden.ledger import EsPlan, GrpoPlan

    size = _size(parameters, model)
    wanted: Solve | None = solve or ("n" if es_n is None else "g" if grpo_g is None else None)
    if es_n is None and (grpo_g is None or wanted != "n"):
        raise UsageError("--es-n is missing", "give --es-n 32, or --grpo-g 8 with --solve n")
    if grpo_g is None and wanted != "g":
        raise UsageError("--grpo-g is missing", "give --grpo-g 8, or --es-n 32 with --solve g")
    es = EsPlan(es_n or 2, prompts, updates, prompt_tokens, response_tokens, antithetic=antithetic)
    grpo = GrpoPlan(
        grpo_g or 2, prompts, updates, prompt_tokens, response_tokens,
        kl=kl > 0, old_pass=grpo_steps * inner > 1, inner=inner,
    )  # fmt: skip
    solved = _solved(es, grpo, size, ledger, wanted) if wanted else None
    if solved is not None and es_n is None:
        es = replace(es, members=solved.value)
    if solved is not None and grpo_g is None:
        grpo = replace(grpo, group=solved.value)
    document = _document(es, grpo, size, solved, tokens_per_second, grpo_steps)
    if as_json:
        common.print_json(document)
    else:
        common.stdout().print(_text(document), markup=False, soft_wrap=True)
    return 0


def _size(parameters: float | None, model: str | None) -> ModelSize:
    """From a number, or from shapes: of a model on this machine or of one that is known by name."""
    from broaden.errors import UsageError
    from broaden.ledger import ModelSize

    if (parameters is None) == (model is None):
        raise UsageError(
            "the model's size is needed, once", "--parameters 1.5e9, or --model Qwen/Qwen2.5-1.5B-Instruct"
        )
    if parameters is not None:
        return ModelSize(round(parameters))
    from broaden.models.known import spec_of

    spec = spec_of(model or "")
    return ModelSize(spec.parameters, spec.layers, spec.heads * spec.head_dim)


def _solved(es: EsPlan, grpo: GrpoPlan, size: ModelSize, ledger: Ledger, what: Solve) -> Match:
    from broaden.ledger import match_group, match_members, match_updates

    solver = {"n": match_members, "g": match_group, "updates": match_updates}[what]
    return solver(es, grpo, size, ledger)


def _document(
    es: EsPlan, grpo: GrpoPlan, size: ModelSize, solved: Match | None, rate: float | None, steps: int
) -> dict[str, Any]:
    """The object that --json prints: both plans with their budgets, where they are equal, and what was solved."""
    ours, theirs = _budget(es.budget(size), size, rate), _budget(grpo.budget(size), size, rate)
    rollouts = {
        "es": es.updates * es.evaluations * es.prompts * es.samples, "grpo": grpo.updates * grpo.prompts * grpo.group,
    }  # fmt: skip
    found: dict[str, Any] = {
        "parameters": size.parameters,
        "attention": size.layers > 0,
        "es": {**es.to_json(), "rollouts": rollouts["es"], "optimizer_steps": 0, "budget": ours},
        "grpo": {
            **grpo.to_json(), "rollouts": rollouts["grpo"],
            "optimizer_steps": grpo.updates * steps * grpo.inner, "budget": theirs,
        },
        "ratio": {k: None if ours[k] is None else ours[k] / theirs[k] for k in BUDGETS},
        "equal_at": {name: _solved(es, grpo, size, name, "n").exact for name in ("paper", "full")},
        "solved": None,
    }  # fmt: skip
    if solved is not None:
        found["solved"] = {
            "ledger": solved.ledger, "what": solved.solved, "exact": solved.exact, "value": solved.value,
            "ratio": solved.ratio, "es": _budget(solved.es, size, rate), "grpo": _budget(solved.grpo, size, rate),
        }  # fmt: skip
    return found


def _budget(budget: Budget, size: ModelSize, rate: float | None) -> dict[str, Any]:
    """The four budgets; seconds = full ledger / (2 P rate), None without a rate."""
    seconds = None if rate is None else budget.flops_full / (2.0 * size.parameters * rate)
    return {**budget.to_json(), "seconds": seconds}


def _text(found: dict[str, Any]) -> str:
    """The same for people."""
    columns = {
        f"ES N={found['es']['members']}": found["es"],
        f"GRPO G={found['grpo']['group']}": found["grpo"],
    }
    solved = found["solved"]
    budgets = {name: plan["budget"] for name, plan in columns.items()}
    if solved is not None:
        letter = {"members": "N", "group": "G", "updates": "updates"}[solved["what"]]
        arm = "grpo" if solved["what"] == "group" else "es"
        budgets[f"{arm.upper()} {letter}={solved['value']}"] = solved[arm]
    names = {"updates": "updates", "tokens": "generated tokens", "flops_paper": "FLOPs, paper's ledger",
             "flops_full": "FLOPs, full ledger", "seconds": "seconds"}  # fmt: skip
    rows = [["", *budgets]]
    rows += [["rollouts", *(f"{p['rollouts']:,}" for p in columns.values())]]
    rows += [["optimiser steps", *(f"{p['optimizer_steps']:,}" for p in columns.values())]]
    rows += [[label, *(_figure(b[key]) for b in budgets.values())] for key, label in names.items()]
    widths = [max(len(row[i]) for row in rows if i < len(row)) for i in range(len(rows[0]))]
    lines = []
    for label, *cells in rows:
        right = (f"{cell:>{w}}" for cell, w in zip(cells, widths[1:], strict=False))
        lines.append("  ".join([f"{label:<{widths[0]}}", *right]))
    equal = found["equal_at"]
    lines.append(
        f"equal at N = {equal['paper']:.4g} on the paper's ledger, at N = {equal['full']:.4g} on the full one"
    )
    if solved is not None:
        lines.append(
            f"solved on the {solved['ledger']} ledger: {letter} = {solved['exact']:.6g}, so {solved['value']} "
            f"(ES / GRPO = {solved['ratio']:.4g})"
        )
    return "\n".join(lines)


def _figure(value: float | None) -> str:
    if value is None:
        return "no rate given"
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
