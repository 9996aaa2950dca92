"""``fedveil compare``: several runs on one page; those that differ in their seed alone are put together."""
