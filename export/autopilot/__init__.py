"""Chooses the number type of each table: what every choice costs is measured, and the cheapest are taken until a budget is met.

`measure` asks the trained model with one table at a time stored narrower, `choose` picks, `report` tells why.
"""
