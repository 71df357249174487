"""`python -m envelope` is the `envelope` command."""

from envelope.cli import main

if __name__ == "__main__":
    main()
