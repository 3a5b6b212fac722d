"""Pictures and tables from stored results alone: no torch, no models."""
