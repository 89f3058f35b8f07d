"""The deny and ask rules that the machine can enforce, those that depend on a command's words
alone, and the limit of a decision's work.
"""
