"""`noetl lake`: the event log as files of columns."""
