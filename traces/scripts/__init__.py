"""Training scripts of the shipped recordings; each script trains once when it is run.

This package owns gpt, mobilenet, mlp and gpt2, each with train(update, steps, seed). It does not
own the recorder; `ondie record OUT.h5 -- python traces/scripts/gpt.py` runs a script under it.
Source: see the module of each model; the data is the text in ../data and scikit-learn's digits.
"""
