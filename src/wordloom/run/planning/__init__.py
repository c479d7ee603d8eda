"""Plan a run on GPUs that are not there: its memory, its speed, and what to change if it does not fit."""
