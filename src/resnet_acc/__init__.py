"""resnet_acc: how much a compiler speeds up distributed ResNet-50 training, measured on your own machine.

Importing the package initialises no device and imports no training code.
"""

__version__ = "0.1.0"
