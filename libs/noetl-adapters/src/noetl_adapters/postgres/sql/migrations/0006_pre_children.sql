-- Children of an execution: among heads, for those who end them with it, and among projections, for those who look.
-- Neither column ever changes, so head moves and row updates stay heap-only.
CREATE INDEX stream_parent_idx ON noetl.stream (parent_execution_id) WHERE parent_execution_id IS NOT NULL;
CREATE INDEX execution_parent_idx ON noetl.execution (parent_execution_id, execution_id DESC)
    WHERE parent_execution_id IS NOT NULL;
