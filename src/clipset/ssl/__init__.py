"""Self-supervised training of a video backbone from pixels: VideoMAE, MoCo v3, sparse MoCo v3."""
