"""Studies of what other papers claim in reinforcement learning: evaluation and control by heterogeneous agents."""
