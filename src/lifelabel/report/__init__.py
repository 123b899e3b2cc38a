"""Tables and pictures for people: of runs, from their folders and nothing else, and of streams."""
