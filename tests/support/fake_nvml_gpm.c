/* GPM, as part of the fake NVML: fake_nvml.c includes this file at its end. */
