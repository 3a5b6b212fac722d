"""broaden: post-training for reasoning with evolution strategies and GRPO, measured honestly.

Importing the package loads nothing heavy; take what you need from its modules.
"""

__version__ = "0.1.0"
