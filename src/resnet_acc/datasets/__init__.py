"""Images on disk: mock ImageNet, and counting what a folder holds."""
