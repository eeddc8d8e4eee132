//! The run directory: what is kept of a run, and that only one process writes to it.
