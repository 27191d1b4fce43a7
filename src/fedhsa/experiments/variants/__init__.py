"""Studies of FedHSA's variants and limits: questions that the paper leaves open."""
