"""The steering surface: executions that people pause, resume, finalize and redrive.

A paused execution records everything and decides nothing: what runs ends, claims are refused, and each event that would
have led to something is held back in the state. `execution.resumed` is the cause of all that was held back.
"""
