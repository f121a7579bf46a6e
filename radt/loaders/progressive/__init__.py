"""Progressive resizing: small images and large batches first (`ProgressiveLoader`)."""
