"""NATS JetStream: one supervised connection, its streams, pipelined publishes and pulled deliveries."""
