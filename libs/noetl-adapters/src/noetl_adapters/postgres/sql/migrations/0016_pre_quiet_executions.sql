-- Those that have not ended are few beside those that have; a row enters the index once and leaves it once.
CREATE INDEX execution_open_idx ON noetl.execution (execution_id) WHERE end_time IS NULL;
