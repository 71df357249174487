"""`python -m flow` is the `flow` command."""

from flow.cli import main

if __name__ == "__main__":
    main()
