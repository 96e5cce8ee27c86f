"""Small experiments that notebooks run as processes of their own: python -m resnet_acc.training.lessons.NAME --help

Each prints lines for people, and as its last line RESULT and one JSON object (see common.py). They train with the
package's own accelerators, so that what they show is what a run does.
"""
