"""The devices of machines and of runs: GPUs and CPUs.

This is the only model of devices; everything that asks NVML uses `nvml`. `gpus` reads what exists:
each GPU with its MIG devices, by UUID, or with the reason why it does not answer. A `gpus.Device`
is what CUDA can offer a process: a GPU or a MIG device. `visible` reads ``CUDA_VISIBLE_DEVICES`` as
CUDA does, for the rows of a runner and for a script; where numbers alone do not tell which GPUs
they mean, `ordinals` asks the driver. `machine` has what rows may use and what one row uses.
`host` is the machine apart from its GPUs; `hardware` is what is recorded of it with runs.

A result that is empty because something failed says so, so that no row falls back to the CPU.
"""
