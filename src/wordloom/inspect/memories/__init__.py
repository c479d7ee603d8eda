"""Feed-forward layers as key-value memories (Geva et al. 2021, arXiv:2012.14913).

A feed-forward layer computes sum over i of m_i v_i: neuron i has a key k_i, which decides the activation
m_i = act(k_i x), or act(g_i x) (u_i x) in a gated layer, and a value v_i, which m_i adds to the vector of the
token.  The contexts with the largest m_i say what the key looks for.  The words with the largest probability
in softmax(E v_i), where E is the output embedding, say what the value promotes.
"""
