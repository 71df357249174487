"""Speed, as ratios measured in one run: `python -m tests.bench verify --json`, `python -m tests.bench run --json`."""
