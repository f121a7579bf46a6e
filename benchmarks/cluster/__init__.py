"""What following an experiment on a cluster costs, on a simulated one."""
