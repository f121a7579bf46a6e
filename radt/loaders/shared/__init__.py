"""One loader for several training processes on a machine (TensorSocket; thesis, chapter 5)."""
