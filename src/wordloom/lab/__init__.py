"""Small experiments that reproduce a paper's figures within minutes, on synthetic data."""
