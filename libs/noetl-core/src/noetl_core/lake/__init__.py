"""The event lake: the log as files of columns, each event in exactly one of them."""
