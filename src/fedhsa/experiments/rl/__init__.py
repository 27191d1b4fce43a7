"""Studies of other papers' claims in reinforcement learning: evaluation and control by heterogeneous agents."""
