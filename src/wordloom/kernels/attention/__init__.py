"""The attention kernels: dense, and sparse by position."""
