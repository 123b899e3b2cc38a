"""Tables and pictures from run folders; reads those folders and nothing else."""
