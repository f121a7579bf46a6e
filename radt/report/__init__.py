"""Tables and figures about what was measured."""
