"""Turns events into queryable projections and answers queries over them."""
