"""The paper's constants, assumptions and bounds, and measurements of its proof's quantities during a run."""
