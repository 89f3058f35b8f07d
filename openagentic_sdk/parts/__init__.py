"""The features of a run: each is a separate part that the kernel calls through the methods of `kernel.part.Part`."""
