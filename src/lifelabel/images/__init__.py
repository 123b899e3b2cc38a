"""From an image file to a batch of pixels: decoding, transforms, shards, worker processes."""
