"""Side-by-side timings against peers: always a ratio, on the same work, alternating, in one run."""
