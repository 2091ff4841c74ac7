"""The surface between executions: children that a call has started, and calls that wait for one without a worker."""
