"""What will it cost: predictions of output lengths and of costs, from prompts and from what has finished before."""
