"""Examples to copy: agent documents, and the code that they name."""
