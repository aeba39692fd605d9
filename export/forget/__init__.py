"""A user's right to be forgotten: an id taken out of all versions of a model, and kept out of those that come later.

`ledger` remembers who was forgotten by `tags`, which tell nothing without a key; `losses` finds what a version would lose, `rewriting` and `samples`
write it anew beside the old one, `swap` puts it in its place, and `forget` does all of it in order. `leaving_out` is what exports do with the ledger.
"""
