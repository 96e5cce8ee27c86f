"""python -m resnet_acc"""

from resnet_acc.cli import main

main()
