"""A trained model put to work on data files, by one process or several: `evaluation` measures it, `outputs` writes down what it answers.

`model` reads it from a checkpoint, `rows` reads the data, `cli` has the commands.
"""
