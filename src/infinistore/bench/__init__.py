"""What `infinistore bench` measures: the store beside the limits of the machine it runs on."""
