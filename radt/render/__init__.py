"""Reports in the formats for people and programs: terminal, Markdown, HTML, CSV, JSON."""
