"""The deadline surface: until when an execution, an activation or a waiting command must have ended.

Whatever opens something with a limit records the seconds in its event (`workflow.initialized`, `step.enter`, a command
that is parked); the limit counts from that event's ingest time, so that PostgreSQL's clock alone decides. The fold
keeps the time with the thing itself, so a deadline is open exactly as long as the thing is, and nothing takes it back.
The reaper lists executions whose next deadline has passed, and the planner appends `deadline.passed`.

To give another thing a deadline: record seconds in the event that opens it, keep the time in its state, list it in
`open_deadlines`, take it away in `pass_deadline`, and say in `after_deadline` what follows.
"""
