"""Training: one loop, its optimizers, schedules, precision, hooks and checkpoints."""

from wordloom.train.allocator import tune_allocator
from wordloom.train.hooks import Evaluate, Log, Sample, Save
from wordloom.train.plan import Plan, make_plan
from wordloom.train.trainer import Hook, Trainer

__all__ = ["Evaluate", "Hook", "Log", "Plan", "Sample", "Save", "Trainer", "make_plan", "tune_allocator"]
