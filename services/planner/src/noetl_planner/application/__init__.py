"""What the planner does: fold, decide, append; claims and completions are part of the same turns."""
