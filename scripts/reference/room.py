"""Where the text of the language leaves room: what this runtime does there, so that nobody has to try."""

from __future__ import annotations

from scripts.reference.markdown import table

_INTRO = """
The language is specified elsewhere, and most of it has one meaning only. Where it could be read in two ways, this is
the one that holds here.
"""
_ROOM = (
    (
        "two inclusive arcs into one step",
        "each that holds is one activation; a step with several forward predecessors, and the final step, run once",
    ),
    (
        "a step that is led to again while steps behind it still read its last result",
        "it waits for the steps that it alone leads to, not for those behind them; joins are not waited for",
    ),
    (
        "steps behind one that takes chunks",
        "run for each chunk, in order, unless they are joins; a chunk is no reason to run the final step",
    ),
    (
        "the final step, and arcs into it",
        "they wait for the end, at which it runs once; it is admitted like any step, and must not be the entry",
    ),
    (
        "the final step when an execution is ended at once",
        "it does not run after an unhandled failure under `fail_fast`, after the timeout of the execution, after too "
        "many activations, or when somebody finalizes or cancels; after any other failure it does",
    ),
    (
        "several failures",
        "an execution fails with the first that nobody handled; its own timeout and `execution.visit_cap` precede it",
    ),
    (
        "`set` of a task that failed",
        "is left out, since there is no result to take from; `set` of the rule that matches is done",
    ),
    (
        "`set` of a step that failed",
        "is left out after a failed call, also one that took too long; it is done after a failed loop, whose event is "
        "`loop.done`; if `set` itself fails, nothing of it is set",
    ),
    (
        "a failed loop with plain and error arcs",
        "exclusive: the first arc that holds is taken, and handles nothing if it speaks of no error",
    ),
    (
        "`status` of a loop",
        "`ok` if every item succeeded, also if there is none, `error` if none did, else `partial`, within the budget "
        "or over it; `output.status` is `error` exactly if the step failed",
    ),
    (
        "`fanin.status` of a fan-out that never opened, or was stopped",
        "`failed` if no item succeeded, else `partial`; without items to run it is `complete`",
    ),
    ("`break` and `output.status`", "`break` is a good end: arcs see `ok`; the event of the call says `break`"),
    (
        "`on_no_match`",
        "`complete` and `quiet` end a branch alike; with `no_next_is_error` no match fails whatever it says, and a "
        "step without arcs does not",
    ),
    (
        "an arc for a chunk whose condition cannot be evaluated",
        "fails the step, which no error arc handles; chunks after it are still taken",
    ),
    (
        "pause",
        "what runs goes on to its end and is recorded; children are not paused; time limits of executions, steps and "
        "waiting calls run on, but not against a step that has ended and only waits to be left",
    ),
    (
        "children of an execution that fails or runs out of time, or of a step that does",
        "go on; only cancelling cascades",
    ),
    (
        "words that are falsy as text (`no`, `off`, `0`, …)",
        "so where a condition has its value: `when`, `stop_when`; inside templates `not`, `and` and `if` are Jinja2's, "
        "to which any text but the empty one is true",
    ),
    (
        "JSON text as `in` of a loop",
        "text that holds a list or a map is parsed; any other text, also that of a number, is one item",
    ),
    (
        "`status, error, http, pg, py, meta, ref` below `output`",
        "always those of the envelope: a good end has no `output.error`, also if its result has a field of that name "
        "or a rule has continued after an error; such fields are below `output.data`",
    ),
    (
        "which events have the node `<step>:task_sequence`",
        "those of the commands of a step whose tools are a list, also of one: `command.*`, `call.*`; steps, loops, "
        "frames, children and variables are told under the step, and whoever asks for a step is told of both",
    ),
    (
        "`_index, _first, _last, _total` of loops, `_frame_index, _frame_row_index, _worker_slot_id` of frames",
        "are names by themselves and below `iter`",
    ),
    (
        "`output.scope`",
        "is told with the reference; whatever it says, nothing is deleted that an event refers to",
    ),
    (
        "waits between attempts",
        "up to a tenth longer than written, by chance, so that many do not come back at once; at most a year",
    ),
    (
        "`Retry-After`",
        "seconds or a date; closes the bucket of a task that has `rate_limit`, for a day at most",
    ),
)


def room() -> str:
    """A section of the language's page."""
    return f"## Where the text leaves room\n{_INTRO}\n" + table(("where", "what happens"), _ROOM)
