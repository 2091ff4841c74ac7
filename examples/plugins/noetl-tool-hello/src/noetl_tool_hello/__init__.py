"""A worked example of a tool in a package of its own."""
