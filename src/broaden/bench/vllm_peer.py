"""vLLM's side of `broaden bench generate`: a script for the interpreter of another environment, which has vLLM.

`PYTHON vllm_peer.py`, driven by lines of JSON on standard input, one answer a line on standard output: first
{"model", "dtype", "context", "rows", "prepack"}, answered by {"conditions"}; then {"prompts", "new", "temperature",
"stops"}, answered by {"lengths", "cpu"} (seconds). It imports nothing of this package. Without `prepack` the oneDNN
path is off before the model is loaded, and the live parameters are counted: prepacked layers leave empty ones behind.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from typing import Any


def answers(opening: dict[str, Any]) -> Any:
    """Build the engine; yields its conditions, then takes questions and gives answers."""
    torch, vllm, operations = (importlib.import_module(n) for n in ("torch", "vllm", "vllm._custom_ops"))
    if not opening["prepack"]:
        operations._supports_onednn = False  # type: ignore[attr-defined]
    llm = vllm.LLM(
        opening["model"], dtype=opening["dtype"], max_model_len=opening["context"], max_num_seqs=opening["rows"],
        distributed_executor_backend="uni", enforce_eager=True, enable_prefix_caching=False,
    )  # fmt: skip
    said: dict[str, Any] = {
        "conditions": {
            "vllm": vllm.__version__, "torch": torch.__version__, "threads": torch.get_num_threads(),
            "live_parameters": sum(llm.apply_model(live_parameters)),
        }
    }  # fmt: skip
    while True:
        asked = yield said
        how = vllm.SamplingParams(
            temperature=asked["temperature"], max_tokens=asked["new"], top_p=1.0, ignore_eos=not asked["stops"],
            stop_token_ids=asked["stops"] or None, detokenize=False,
        )  # fmt: skip
        prompts = [{"prompt_token_ids": ids} for ids in asked["prompts"]]
        began = time.process_time()
        found = llm.generate(prompts, how, use_tqdm=False)
        lengths = [len(f.outputs[0].token_ids) for f in found]
        said = {"lengths": lengths, "cpu": time.process_time() - began}


def live_parameters(model: Any) -> int:
    """Values that the model still holds as ordinary parameters."""
    return int(sum(p.numel() for p in model.parameters()))


def main() -> None:
    """Keep the answers' stream to ourselves: what libraries print goes to stderr."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.path.pop(0)  # this folder: its modules are not for the other environment's libraries to find
    engine = answers(json.loads(sys.stdin.readline()))
    said = next(engine)
    while True:
        out.write(json.dumps(said) + "\n")
        out.flush()
        line = sys.stdin.readline()
        if not line:
            return
        said = engine.send(json.loads(line))


if __name__ == "__main__":
    main()
