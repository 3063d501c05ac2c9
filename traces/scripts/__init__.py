"""The training scripts behind the shipped recordings; each trains once when run plainly.

Owns: gpt, mobilenet, mlp and gpt2, each with train(update, steps, seed).
Does not: know the recorder; `ondie record OUT.h5 -- python traces/scripts/gpt.py` adds it.
Source: beside each model; data from text in ../data and from scikit-learn.
"""
