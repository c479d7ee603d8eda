"""The toy models of superposition, trained many at a time, and three experiments on them.

Source: Elhage et al. 2022, Toy Models of Superposition, arXiv:2209.10652.

A toy model compresses n features into m dimensions and reconstructs them::

    h = W x                         [n] -> [m]
    x' = ReLU(W^T h + b)            [m] -> [n]
    loss = sum_i I_i (x_i - x'_i)^2

Feature i is 0 with probability S and otherwise uniform on [0, 1].  1 - S is the density, and I_i the
importance.  Column W_i of W is the direction of feature i.  With more features than dimensions, the model
must drop features or let them share directions, which is superposition.

Shapes: I models, B rows of inputs, n features, m dimensions.
"""
