"""Knowledge capacity: how many bits of facts a language model stores per parameter.

Source: Allen-Zhu & Li 2024, Physics of Language Models: Part 3.3, Knowledge Capacity Scaling Laws,
arXiv:2404.05405.

A model is trained on synthetic facts whose entropy is known.  Its losses give a lower bound on the bits that
it stores.  With more facts than it can hold, the bits per parameter reach a plateau, the capacity.

Shapes: N people, K attributes, B rows, T = 2 K + 3 predictions in a row.
"""
