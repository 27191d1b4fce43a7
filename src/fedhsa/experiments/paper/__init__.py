"""The paper's figures and studies of its claims."""
