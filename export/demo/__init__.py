"""`emberline demo`: the whole line on MovieLens-100k, from ratings to the answers of two servers, beside baselines computed in the same run.

`movielens` prepares the data, `baselines` and `plain` are what the model is measured against, `demo` is the order of the steps.
"""
