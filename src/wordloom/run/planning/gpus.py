"""Known GPUs: their memory, their peak FLOP rates, and how fast they exchange numbers."""

from __future__ import annotations

from dataclasses import dataclass

from wordloom.errors import DeviceError, did_you_mean


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A GPU, and its place in a cluster.

    Attributes:
        memory: GiB.
        bf16, fp32: peak FLOP/s of dense products, in units of 10^12.
        bandwidth: GB/s that it sends to the other GPUs of its machine.
        network: GB/s that it sends to other machines; 0: not known.
    """

    memory: float
    bf16: float
    fp32: float
    bandwidth: float
    network: float = 0.0


# From the data sheets of NVIDIA and AMD: dense products (without sparsity), one direction of a link.  The
# fp32 rate is that without tensor cores, because training in fp32 does not use TF32.  SXM modules and MI300X
# have the network of the makers' own machines of 8: an adapter of 200 Gb/s (A100) or 400 Gb/s for each GPU.
# Cards on PCIe 4.0 x16 have 32 GB/s, and no network of their own.
GPUS: dict[str, Gpu] = {
    "a100-40gb": Gpu(memory=40, bf16=312, fp32=19.5, bandwidth=300, network=25),
    "a100-80gb": Gpu(memory=80, bf16=312, fp32=19.5, bandwidth=300, network=25),
    "h100-80gb": Gpu(memory=80, bf16=989, fp32=67, bandwidth=450, network=50),
    "h200-141gb": Gpu(memory=141, bf16=989, fp32=67, bandwidth=450, network=50),
    "b200-180gb": Gpu(memory=180, bf16=2250, fp32=75, bandwidth=900, network=50),
    "mi300x-192gb": Gpu(memory=192, bf16=1307, fp32=163, bandwidth=448, network=50),
    "l4-24gb": Gpu(memory=24, bf16=121, fp32=30, bandwidth=32),
    "a10g-24gb": Gpu(memory=24, bf16=70, fp32=31, bandwidth=32),
    "l40s-48gb": Gpu(memory=48, bf16=362, fp32=91.6, bandwidth=32),
    "rtx3090-24gb": Gpu(memory=24, bf16=71, fp32=35.6, bandwidth=32),
    "rtx4090-24gb": Gpu(memory=24, bf16=165, fp32=82.6, bandwidth=32),
}


def gpu_called(name: str) -> Gpu:
    """Return the GPU called ``name``; the memory may be left out where one kind has the name.

    Raises DeviceError for an unknown name.
    """
    lower = name.lower()
    found = [key for key in GPUS if key == lower or key.partition("-")[0] == lower]
    if len(found) != 1:
        known = did_you_mean(lower, found or GPUS)
        raise DeviceError(
            f"unknown GPU {name!r}; {known}. For other hardware give --memory, --flops and --bandwidth"
        )
    return GPUS[found[0]]
