"""Training: one loop, its optimizers, schedules, precision, hooks and checkpoints."""

from wordloom.training.allocator import tune_allocator
from wordloom.training.hooks import Evaluate, Log, Sample, Save
from wordloom.training.plan import Plan, make_plan
from wordloom.training.trainer import Hook, Trainer

__all__ = ["Evaluate", "Hook", "Log", "Plan", "Sample", "Save", "Trainer", "make_plan", "tune_allocator"]
