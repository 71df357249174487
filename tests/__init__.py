"""The tests; `tests.specgen` and `tests.cddl` are shared by several of them."""
