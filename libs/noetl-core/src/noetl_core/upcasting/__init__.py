"""Old events, read as the release at hand would have written them. The bytes in the log never change."""
