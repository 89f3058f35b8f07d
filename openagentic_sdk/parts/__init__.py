"""The features of a run: each is a part of its own, which meets the kernel at the seams of `kernel.part.Part`."""
