"""Keeps the event lake: Parquet files in a directory or a bucket."""
