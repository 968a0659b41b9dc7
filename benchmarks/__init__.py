"""Speed, as ratios against a peer or a plain counterpart in the same run: `python -m benchmarks`."""
