"""Many runs: the scheduler, comparisons of methods, and the search for options."""
