"""`noetl verify`: proof that the log is what was written, and that live state is what the log says."""
