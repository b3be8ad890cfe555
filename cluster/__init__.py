"""Real time: engines, replicas and the scheduler actor on Ray."""
