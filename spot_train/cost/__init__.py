"""What drafted states cost on a machine, and the throughput that follows."""
