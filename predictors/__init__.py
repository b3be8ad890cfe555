"""What will it cost: predictions of output lengths and of costs, from what has finished before."""
