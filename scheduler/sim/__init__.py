"""Models of the world around the scheduler: the batching engine, workloads and the driver that runs them."""
