"""The run directory on disk: append-only JSONL, atomic commits, Parquet samples. No torch.

What was committed is whole and stays; what was being written when the process died is cut off or
ignored, with a message. `docs/formats.md` describes every file.
"""

from broaden.store.commit import clean_partial, commit, write_text
from broaden.store.jsonl import JsonlFile, append_jsonl, read_jsonl
from broaden.store.rundir import RunDir
from broaden.store.samples import SampleStore

__all__ = [
    "JsonlFile",
    "RunDir",
    "SampleStore",
    "append_jsonl",
    "clean_partial",
    "commit",
    "read_jsonl",
    "write_text",
]
