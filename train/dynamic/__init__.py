"""Tables that grow with their ids: any 64-bit id gets a row when it is first trained on, up to a bound, and rows that nobody asks for give way.

`options` says what a config may ask of such a table; everything else is in the modules beside it, which are imported by their own names.
"""
