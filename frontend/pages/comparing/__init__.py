"""What the Compare page asks of the server: what is picked, and one figure a chart."""
