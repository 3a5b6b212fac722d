"""Models: specification, checkpoints, tokenizer, sources, forward pass. Take what you need from the modules."""
