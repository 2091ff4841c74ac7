"""Spark: a session in a process of its own, and payloads as a data source of any PySpark program."""
