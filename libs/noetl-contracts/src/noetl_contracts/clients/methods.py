"""Which methods a channel may repeat by itself: those for which twice is the same as once."""

IDEMPOTENT_METHODS = frozenset(
    {
        # Every draft has an idempotency key, so a repeated append is answered with the first one's events.
        "/noetl.event.v1.EventService/Append",
        "/noetl.event.v1.EventService/Read",
        "/noetl.event.v1.EventService/ListHeads",
        "/noetl.catalog.v1.CatalogService/Register",
        "/noetl.catalog.v1.CatalogService/Get",
        "/noetl.catalog.v1.CatalogService/List",
        "/noetl.catalog.v1.CatalogService/ListVersions",
        # The client always sends a start key.
        "/noetl.execution.v1.ExecutionService/Execute",
        "/noetl.execution.v1.ExecutionService/Get",
        "/noetl.execution.v1.ExecutionService/List",
        "/noetl.execution.v1.ExecutionService/Cancel",
        "/noetl.execution.v1.ExecutionService/Pause",
        "/noetl.execution.v1.ExecutionService/Resume",
        "/noetl.execution.v1.ExecutionService/Finalize",
        "/noetl.execution.v1.ExecutionService/Redrive",
        # A credential is replaced as a whole. Delete is not here: the second one finds nothing.
        "/noetl.credential.v1.CredentialService/Put",
        "/noetl.credential.v1.CredentialService/Get",
        "/noetl.credential.v1.CredentialService/List",
        "/noetl.credential.v1.CredentialService/Resolve",
        "/noetl.credential.v1.CredentialService/Rotate",
        "/noetl.shard.v1.ShardService/GetInstallation",
        "/noetl.shard.v1.ShardService/Hold",
        "/noetl.shard.v1.ShardService/Release",
        "/noetl.shard.v1.ShardService/ListShards",
        "/noetl.why.v1.WhyService/Explain",
        "/noetl.worker.v1.WorkerService/Report",
        "/noetl.worker.v1.WorkerService/Leave",
        "/noetl.worker.v1.WorkerService/List",
        "/noetl.command.v1.CommandService/Claim",
        "/noetl.command.v1.CommandService/Complete",
        "/noetl.command.v1.CommandService/TellChunk",
        "/noetl.command.v1.CommandService/Heartbeat",
        "/noetl.command.v1.CommandService/Park",
        "/noetl.command.v1.CommandService/PassDeadlines",
        "/noetl.command.v1.CommandService/Steer",
        "/noetl.projection.v1.ProjectionService/GetExecution",
        "/noetl.projection.v1.ProjectionService/ListExecutions",
        "/noetl.projection.v1.ProjectionService/ListSilentCommands",
        "/noetl.projection.v1.ProjectionService/ListPassedDeadlines",
    }
)
