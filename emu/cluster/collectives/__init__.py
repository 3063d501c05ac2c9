"""All-reduce algorithms for gradients, and the links and IP tunnels that they use."""
