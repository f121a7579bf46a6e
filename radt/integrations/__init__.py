"""Training frameworks that record themselves: one module a library, imported with the library only.

`radt.autolog` switches on those of the libraries that a script imports.
"""
