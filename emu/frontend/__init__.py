"""The NVMe front end: queues, controller, tunnel."""
