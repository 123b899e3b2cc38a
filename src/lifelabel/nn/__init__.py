"""Neural networks: backbones and their weights, heads, the frozen expert, the label graph, losses and CUDA graphs."""
