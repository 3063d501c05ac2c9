"""All-reduce algorithms and the links that they use."""
